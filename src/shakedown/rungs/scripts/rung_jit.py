"""What the engine compiles at its first use comes out right: FlashInfer's norm, which SGLang takes where
FlashInfer is installed. The first time this takes the compiler a minute, and the launch as long.
"""

import importlib.util

import torch

if importlib.util.find_spec("flashinfer") is None:
    passed("jit", "FlashInfer is not installed: nothing to compile")
    sys.exit()

from flashinfer.norm import rmsnorm

torch.manual_seed(0)
rows = torch.randn(7, 256, device="cuda", dtype=torch.bfloat16)
weight = torch.rand(256, device="cuda", dtype=torch.bfloat16) + 0.5
got = rmsnorm(rows, weight, 1e-6).double()
torch.cuda.synchronize()
wide = rows.double()
wanted = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()
off = ((got - wanted).norm() / wanted.norm()).item()
print(f"FlashInfer's rmsnorm: {off:.2e} from torch in fp64", flush=True)
if not off < 2e-2:
    raise RungFailed(f"FlashInfer's rmsnorm, compiled here, is off by {off:.2e}")
passed("jit", "FlashInfer's rmsnorm")
