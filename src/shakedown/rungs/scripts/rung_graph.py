"""A CUDA graph is captured, and its replays compute what was captured, on new inputs too."""

import torch

torch.manual_seed(0)
weights = [torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) / 16 for _ in range(8)]
given = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16)


def layers(rows):
    for weight in weights:
        rows = torch.nn.functional.silu(rows @ weight)
    return rows


side = torch.cuda.Stream()  # libraries allocate their workspaces before a capture, not in it
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    layers(given)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    told = layers(given)
print("captured", flush=True)
for _ in range(3):
    given.copy_(torch.randn_like(given))
    graph.replay()
    torch.cuda.synchronize()
    expected = layers(given)
    off = ((told - expected).float().norm() / expected.float().norm()).item()
    if not off < 1e-2:
        raise RungFailed(f"a replayed CUDA graph is off by {off:.1e} from the same kernels without one")
passed("graph")
