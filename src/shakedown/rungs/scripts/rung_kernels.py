"""The engine's own small kernels on tiny tensors, against torch: norm, activation, rotary embedding, routing.

A kernel that is missing, fails or computes wrongly ends the rung.
"""

import torch

device, engine = PARAMS.get("device", "cpu"), PARAMS.get("engine", "")
dtype = torch.bfloat16
torch.manual_seed(0)
rows = torch.randn(7, 256, device=device, dtype=dtype)
weight = torch.rand(256, device=device, dtype=dtype) + 0.5


def rms_norm_by_torch():
    wide = rows.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()


def gate_by_torch():
    left, right = rows.double().chunk(2, dim=-1)
    return torch.nn.functional.silu(left) * right


def routing_by_torch(scores):
    return scores.double().softmax(-1).topk(2).values


def vllm_kernels():
    import vllm._custom_ops as ops

    def norm():
        out = torch.full_like(rows, float("nan"))
        ops.rms_norm(out, rows, weight, 1e-6)
        return out

    def gate():
        out = torch.full((7, 128), float("nan"), device=device, dtype=dtype)
        torch.ops._C.silu_and_mul(out, rows)
        return out

    yield "rms_norm", norm, rms_norm_by_torch
    yield "silu_and_mul", gate, gate_by_torch
    if device == "cuda":
        scores = torch.randn(7, 8, device=device)

        def routing():
            weights = torch.full((7, 2), float("nan"), device=device)
            ids = torch.empty(7, 2, device=device, dtype=torch.int32)
            ops.topk_softmax(weights, ids, torch.empty_like(ids), scores)
            return weights

        yield "topk_softmax", routing, lambda: routing_by_torch(scores)


def sglang_kernels():
    import sgl_kernel

    def norm():
        out = torch.full_like(rows, float("nan"))
        # By its own name: sgl_kernel.rmsnorm has FlashInfer compile one, which is a rung of its own.
        torch.ops.sgl_kernel.rmsnorm.default(out, rows, weight, 1e-6, False)
        return out

    if device == "cuda":
        yield "rmsnorm", norm, rms_norm_by_torch
        yield "silu_and_mul", lambda: sgl_kernel.silu_and_mul(rows), gate_by_torch
        scores = torch.randn(7, 8, device=device)

        def routing():
            weights = torch.full((7, 2), float("nan"), device=device)
            ids = torch.empty(7, 2, device=device, dtype=torch.int32)
            sgl_kernel.topk_softmax(weights, ids, scores)
            return weights

        yield "topk_softmax", routing, lambda: routing_by_torch(scores)


def main():
    kernels = {"vllm": vllm_kernels, "sglang": sglang_kernels}.get(engine)
    tried = []
    try:
        for name, run, expected in kernels() if kernels else ():
            try:
                got = run()
            except AttributeError as missing:
                raise RungFailed(f"{engine}'s {name} is not in this build: {missing}") from missing
            if device == "cuda":
                torch.cuda.synchronize()
            wanted = expected()
            off = ((got.double() - wanted).norm() / wanted.norm()).item()
            print(f"{name}: {off:.2e} from torch in fp64", flush=True)
            if not off < 2e-2:
                raise RungFailed(f"{engine}'s {name} on {device} is off by {off:.2e}")
            tried.append(name)
    except ImportError as error:
        if device == "cuda":
            raise
        print(f"no kernels for this device: {error}", flush=True)
    passed("kernels", ", ".join(tried) or "none to try")


main()
