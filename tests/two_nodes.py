"""Two nodes on one machine: network namespaces with addresses of their own, on one bridge."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "bad_servers" / "node_pair.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoNodes:
    """`names` and `addresses` by rank; each has its address on an interface called eth0."""

    names: tuple[str, str]
    addresses: tuple[str, str]

    def blackhole(self, rank: int) -> None:
        """What this node sends to the other is thrown away, answers included."""
        ip("-n", self.names[rank], "route", "add", "blackhole", f"{self.addresses[1 - rank]}/32")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def two_nodes() -> Iterator[TwoNodes]:
    """Skips where this machine allows no network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    tag = f"{random.randrange(16**5):05x}"
    net = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
    bridge, names = f"sd{tag}", (f"a{tag}", f"b{tag}")
    addresses = (f"{net}.1", f"{net}.2")
    try:
        try:
            ip("link", "add", bridge, "type", "bridge")
            for name, address in zip(names, addresses, strict=True):
                ip("netns", "add", name)
                ip("link", "add", f"{name}-h", "type", "veth", "peer", "name", "eth0", "netns", name)
                ip("link", "set", f"{name}-h", "master", bridge, "up")
                ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
                ip("-n", name, "link", "set", "eth0", "up")
                ip("-n", name, "link", "set", "lo", "up")
            ip("addr", "add", f"{net}.254/24", "dev", bridge)
            ip("link", "set", bridge, "up")
        except OSError as problem:
            pytest.skip(f"no network namespaces here: {problem}")
        yield TwoNodes(names=names, addresses=addresses)
    finally:
        for words in (("netns", "del", names[0]), ("netns", "del", names[1]), ("link", "del", bridge)):
            with suppress(OSError):  # what was never made
                ip(*words)


def launch_file(
    nodes: TwoNodes, port: int, *flags: str, env: tuple[dict[str, str], dict[str, str]] = ({}, {})
) -> str:
    """In YAML, as a user would write it, but for the flow style."""
    words = ["ip", "netns", "exec", "{{name}}", sys.executable, str(PROGRAM), "--port", "{{port}}", *flags]
    entries = [
        {"name": name, "address": address, "env": own}
        for name, address, own in zip(nodes.names, nodes.addresses, env, strict=True)
    ]
    return f"""\
variables: {{port: {port}, master_port: {port + 1}}}
env:
  RANK: "{{{{rank}}}}"
  WORLD_SIZE: "{{{{nodes}}}}"
  MASTER_ADDR: "{{{{master}}}}"
  MASTER_PORT: "{{{{master_port}}}}"
command: {words!r}
nodes: {entries!r}
"""
