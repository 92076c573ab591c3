"""The processes that train together: torchrun's, or this one alone.

It never starts a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

PATIENCE = timedelta(minutes=30)  # one process may hash a shard while the others wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, packs: tuple[Any, ...]) -> tuple[Any, ...]:
        """This process's packs of a batch: every size-th."""
        return packs[self.rank :: self.size]

    def add_up(self, numbers: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            distributed.all_reduce(numbers)
        return numbers


@contextmanager
def joined_crew() -> Iterator[Crew]:
    """Joins the group that torchrun's variables describe: NCCL with GPUs, gloo without."""
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    if size == 1:
        yield Crew(rank=0, size=1, device=device)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=PATIENCE)
    try:
        yield Crew(rank=rank, size=size, device=device)
    finally:
        distributed.destroy_process_group()
