"""Which device computes, how much memory it has, and what of a target fits into it.

It never allocates what it counts.
"""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from shakedown.drafter.target import Target

HELD_SHARE = 0.8  # of the memory may be weights; the rest is for states, attention and everybody else
STREAM_SHARE = 0.4  # of the host's memory may be states between two layers
STREAM_TOKENS = 2**21  # a kill loses what is between layers: no more than this, however large the host
BATCH_TOKENS = {"cuda": 16384, "cpu": 1024}


def choose_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def give_back() -> None:
    """To whoever comes next on the device, what nothing here uses any more: torch keeps it otherwise, and a
    model is held by its own cycles until they are collected."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_bytes(device: str) -> int:
    """What is free now; of the host, what can be had without swapping."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return free
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def fits(target: Target, device: str, dtype: torch.dtype) -> bool:
    """Whether all weights in plain numbers can be held at once."""
    return target.weights.numbers() * dtype.itemsize <= HELD_SHARE * free_bytes(device)


def layer_fits(target: Target, device: str, dtype: torch.dtype) -> bool:
    """Whether the last layer's weights can; where layers differ it is the largest kind."""
    numbers = target.weights.numbers(target.layout.layer(target.layers - 1))
    return numbers * dtype.itemsize <= HELD_SHARE * free_bytes(device)


def stream_tokens(target: Target, dtype: torch.dtype) -> int:
    """How many tokens the host can hold between two layers: their state, and what is captured of them."""
    a_token = target.hidden_size * dtype.itemsize * (2 + len(target.aux_inputs_of))
    return max(min(int(STREAM_SHARE * free_bytes("cpu")) // a_token, STREAM_TOKENS), 1)
