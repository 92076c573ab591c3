"""What the readings of the GPUs say of a silence.

It reads no GPU itself, and calls nothing progress: a full load proves none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shakedown.core import GpuUse

GIB = 1 << 30


def describe_gpus(uses: Sequence[GpuUse], names: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    """Each GPU that a process of ours holds, with a line on who holds it and what it does."""
    for gpu in sorted({use.gpu for use in uses}):
        here = [use for use in uses if use.gpu == gpu]
        held = ", ".join(
            f"{names.get(use.pid, 'a process')} holds {use.used_bytes / GIB:.1f} GiB" for use in here
        )
        yield gpu, "; ".join([held, *_doing(here[0])])


def _doing(use: GpuUse) -> Iterator[str]:
    if use.busy_percent is not None:
        yield f"kernels {use.busy_percent} % of the time"
    if use.memory_percent is not None:
        yield f"its memory {use.memory_percent} %"
    if use.power_w is not None:
        yield f"{use.power_w} W" + (f" at {use.clock_mhz} MHz" if use.clock_mhz else "")
