"""A launch file for vLLM on two nodes without a GPU: each computes its share of the requests."""

from __future__ import annotations

from pathlib import Path

from two_nodes import TwoNodes

STARTER = Path(__file__).parent / "vllm_cpu" / "vllm"


def vllm_file(
    nodes: TwoNodes, python: Path, model: Path, port: int, env: dict[str, str] | None = None
) -> str:
    """`env`: more variables of node 1. Pipelines do not work in vLLM 0.32.0 on CPUs, so the data is split."""
    both = f"ip netns exec '{{{{name}}}}' {python} {STARTER} serve {model}"
    both += " --nnodes {{nodes}} --node-rank {{rank}} --master-addr {{master}} --master-port {{master_port}}"
    both += " --data-parallel-size 2 --enforce-eager --max-model-len 1024 --max-num-seqs 4"
    entries = [
        {
            "name": nodes.names[0],
            "address": nodes.addresses[0],
            "command": f"{both} --host {{{{address}}}} --port {port}",
        },
        {
            "name": nodes.names[1],
            "address": nodes.addresses[1],
            "command": f"{both} --headless",
            "env": env or {},
        },
    ]
    return f"""\
variables: {{master_port: {port + 1}}}
env:
  VLLM_CPU_KVCACHE_SPACE: 1
  VLLM_CPU_OMP_THREADS_BIND: nobind
  OMP_NUM_THREADS: 1
  HF_HUB_OFFLINE: 1
  GLOO_SOCKET_IFNAME: eth0
  VLLM_HOST_IP: "{{{{address}}}}"
nodes: {entries!r}
"""
