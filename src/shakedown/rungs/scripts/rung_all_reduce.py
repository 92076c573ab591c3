"""All-reduce over as many ranks as the launch has, in its environment, on GPUs also from a CUDA graph.

The ranks meet at the launch's own host address where it names one, else on the loopback.
"""

import socket
import subprocess
from datetime import timedelta

RANKS, DEVICE = PARAMS.get("ranks", 2), PARAMS.get("device", "cpu")
PATIENCE = timedelta(minutes=10)  # the watch outside says sooner that nothing moves


def rank(number):
    import torch
    import torch.distributed as dist

    if DEVICE == "cuda":
        torch.cuda.set_device(number)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=PATIENCE)
    print(f"rank {number} has met the others", flush=True)
    for count in (1, 4096, 1 << 20):
        tensor = torch.full((count,), float(number + 1), device=DEVICE)
        dist.all_reduce(tensor)
        if not bool((tensor == RANKS * (RANKS + 1) / 2).all()):
            raise RungFailed(f"rank {number}: the sum of {count} numbers over {RANKS} ranks is wrong")
    print(f"rank {number} has summed", flush=True)
    if DEVICE == "cuda":
        sum_in_a_graph(number)
    dist.destroy_process_group()


def sum_in_a_graph(number):
    import torch
    import torch.distributed as dist

    tensor, graph = torch.zeros(4096, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    for _ in range(3):
        tensor.fill_(float(number + 1))
        graph.replay()
        torch.cuda.synchronize()
        if not bool((tensor == RANKS * (RANKS + 1) / 2).all()):
            raise RungFailed(f"rank {number}: an all-reduce replayed from a CUDA graph sums wrongly")
    print(f"rank {number} has summed in a graph", flush=True)


def main():
    address = next(
        (os.environ[k] for k in ("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP") if os.environ.get(k)), ""
    )
    with socket.create_server((address or "127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    children = {}
    for number in range(RANKS):
        env = {
            **os.environ,
            "SHAKEDOWN_RUNG": json.dumps(PARAMS),
            "MASTER_ADDR": address or "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(RANKS),
            "RANK": str(number),
            "LOCAL_RANK": str(number),
        }
        child = subprocess.Popen([sys.executable, __file__, "rank"], env=env)
        children[child.pid] = (number, child)
    see_them_end(children)
    passed("all-reduce", f"{RANKS} ranks")


def see_them_end(children):
    """In the order in which they end: the others would wait for a dead one until their patience is over."""
    while children:
        pid, status = os.wait()
        number, _ = children.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code:
            for _, child in children.values():
                child.kill()
            raise RungFailed(f"rank {number} ended with code {code}")


if sys.argv[1:] == ["rank"]:
    rank(int(os.environ["RANK"]))
else:
    main()
