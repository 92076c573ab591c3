"""What the readings of the GPUs say of a silence.

It reads no GPU itself, and calls nothing progress: a full load proves none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shakedown.core import GpuUse

GIB = 1 << 30
# One H200: an endless kernel or a rank missing from an all-reduce shows kernels 100 %, memory 0 %, and 117 to
# 119 W where idle is 117; a decode memory 89 % and 509 W, a prefill 25 % and 691 W. A load from the host's
# memory is told from them by 2 %, so none is asked for.
WAITING_BUSY_PERCENT, WAITING_MEMORY_PERCENT = 95, 0


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
    if waits(use):
        yield "as of a kernel that only waits (an endless one, or a collective that a rank is missing from)"
    if use.power_w is not None:
        yield f"{use.power_w} W" + (f" at {use.clock_mhz} MHz" if use.clock_mhz else "")


def waits(use: GpuUse) -> bool:
    """Whether the GPU runs a kernel all the time that touches no memory. It proves nothing by itself."""
    if use.busy_percent is None or use.memory_percent is None:
        return False
    return use.busy_percent >= WAITING_BUSY_PERCENT and use.memory_percent <= WAITING_MEMORY_PERCENT
