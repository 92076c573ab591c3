"""Triton compiles a kernel for this chip, and the kernel adds right."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(left, right, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(left + at, mask=inside) + tl.load(right + at, mask=inside), mask=inside)


left, right = (torch.randn(5000, device="cuda") for _ in range(2))
out = torch.full_like(left, float("nan"))
add[(triton.cdiv(5000, 1024),)](left, right, out, 5000, BLOCK=1024)
torch.cuda.synchronize()
if not torch.equal(out, left + right):
    raise RungFailed("a Triton kernel adds wrongly on this chip")
passed("triton", triton.__version__)
