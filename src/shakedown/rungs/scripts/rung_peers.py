"""Every GPU of the launch reads what every other wrote: the path under custom all-reduce and NCCL's P2P.

Where the driver offers no peer access, copies go through the host and must be right as well.
"""

import torch

RANKS = PARAMS.get("ranks", 2)
COUNT = 1 << 22
there = torch.cuda.device_count()
if there < RANKS:
    raise RungFailed(f"the launch has {RANKS} ranks on this machine, and {there} GPUs are visible")
reached = []
for source in range(RANKS):
    for target in range(RANKS):
        if source == target:
            continue
        peers = torch.cuda.can_device_access_peer(target, source)
        written = torch.arange(COUNT, device=f"cuda:{source}", dtype=torch.int32) + source
        got = torch.full((COUNT,), -1, device=f"cuda:{target}", dtype=torch.int32)
        got.copy_(written)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        wrong = int((got.cpu() != written.cpu()).sum())
        print(f"GPU {source} to {target}: peer access {'yes' if peers else 'no'}, {wrong} wrong", flush=True)
        if wrong:
            raise RungFailed(f"GPU {source} to {target}: {wrong} of {COUNT} numbers came out wrong")
        reached.append(peers)
passed("peers", f"{sum(reached)} of {len(reached)} paths without the host")
