"""A kernel that waits for a word that nobody writes, in more blocks than any GPU holds at once."""

import torch
import triton
import triton.language as tl

BLOCKS = 4224  # an H200 holds 2112 of them


@triton.jit
def wait(flag, out):
    seen = tl.atomic_add(flag, 0)
    while seen == 0:
        seen = tl.atomic_add(flag, 0)
    tl.store(out, seen)


def launch() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        flag = torch.zeros(1, device="cuda", dtype=torch.int32)
        wait[(BLOCKS,)](flag, torch.zeros_like(flag))
