"""How many threads torch's work on the host is shared among.

It changes nothing for work on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small operations: torch starts all cores for each and waits for the last of them, which on a
    host where others work takes a hundred times as long as the operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
