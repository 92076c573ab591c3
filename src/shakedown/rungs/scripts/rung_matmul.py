"""Matrix products on one device are right, in the dtypes that engines use."""

import torch

device = PARAMS.get("device", "cpu")
torch.manual_seed(0)
exact_left, exact_right = (torch.randn(256, 256, dtype=torch.float64) for _ in range(2))
exact = exact_left @ exact_right
for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 2e-2)):
    left, right = exact_left.to(device, dtype), exact_right.to(device, dtype)
    got = (left @ right).double().cpu()
    off = ((got - exact).norm() / exact.norm()).item()
    print(f"{dtype}: {off:.2e} from the product in fp64", flush=True)
    if not off < bound:
        raise RungFailed(f"a {dtype} product on {device} is off by {off:.2e}, more than {bound:.0e}")
passed("matmul")
