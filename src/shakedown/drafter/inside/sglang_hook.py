"""Runs in SGLang's scheduler: writes what reaches the logits processor, aux states and last ones, to files.

It changes nothing that it sees, and copies without making the device wait.
"""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sglang.srt.distributed.parallel_state import get_tensor_model_parallel_rank

WRITERS = 8


def make_hook(config: dict[str, Any]) -> Any:
    return StatesHook(Path(config["spool"]))


class StatesHook:
    """Called after each forward of the logits processor, whose inputs are token ids, the states after the
    final norm, the head, the batch, and the aux states."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._pool = ThreadPoolExecutor(WRITERS)

    def __call__(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tokens, last, _, batch, *rest = inputs
        names = batch.rids
        if not names or not batch.forward_mode.is_extend() or get_tensor_model_parallel_rank() != 0:
            return
        aux = rest[0] if isinstance(rest[0], torch.Tensor) else torch.cat(rest[0], dim=-1)
        start = 0
        for name, length, before in zip(
            names, batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu, strict=True
        ):
            rows = slice(start, start + length)
            start += length
            if name.startswith("states-"):  # not a warm-up of SGLang's own
                if before:
                    raise RuntimeError(f"{name}: its first {before} tokens were not computed")
                self._write(name, {"token_ids": tokens[rows], "aux": aux[rows], "last": last[rows]})

    def _write(self, name: str, states: dict[str, torch.Tensor]) -> None:
        """Starts the copy and leaves the rest to a thread; a lock on a file beside says until when."""
        path = self._spool / f"{name}.safetensors"
        lock = os.open(f"{path}.lock", os.O_CREAT | os.O_WRONLY, 0o644)
        fcntl.flock(lock, fcntl.LOCK_EX)
        on_device = states["aux"].is_cuda
        copied = None
        host = {}
        for key, tensor in states.items():
            host[key] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_device)
            host[key].copy_(tensor, non_blocking=on_device)
        if on_device:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        self._pool.submit(save, path, host, copied, lock)


def save(path: Path, host: dict[str, torch.Tensor], copied: Any, lock: int) -> None:
    try:
        if copied is not None:
            copied.synchronize()
        save_file(host, path)
    finally:
        os.close(lock)  # gives up the lock
