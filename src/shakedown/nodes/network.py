"""What the network of a node looks like from inside it: interfaces, sockets that wait, peers that answer.

It is read by a script in the node's own interpreter and network, which opens a connection and says nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shakedown.core import Execution, Missing

CONNECT_S = 2.0  # within one cluster an answer takes milliseconds
DEADLINE_S = 20.0
MOST_PEERS = 16
PORTS_OF_A_PEER = 2
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ADDRESS_VARIABLES = ("VLLM_HOST_IP", "HOST_IP", "SGLANG_HOST_IP")
ANY = ("0.0.0.0", "::")

SCRIPT = r"""
import concurrent.futures, fcntl, json, os, socket, struct
def address(text):
    words = [int(text[at:at + 8], 16) for at in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    shown = socket.inet_ntop(family, struct.pack("=%dI" % len(words), *words))
    return shown[7:] if shown.startswith("::ffff:") else shown
def sockets():
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name) as table:
                lines = table.read().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            here, there = fields[1].rpartition(":"), fields[2].rpartition(":")
            yield (int(fields[9]), fields[3], (address(here[0]), int(here[2], 16)),
                   (address(there[0]), int(there[2], 16)))
def inodes(pid):
    try:
        for fd in os.listdir("/proc/%d/fd" % pid):
            try:
                target = os.readlink("/proc/%d/fd/%s" % (pid, fd))
            except OSError:
                continue
            if target.startswith("socket:["):
                yield int(target[8:-1])
    except OSError:
        pass
def addresses():
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for _, name in socket.if_nameindex():
        try:
            answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            yield name, socket.inet_ntoa(answer[20:24])
        except OSError:
            yield name, ""
def reach(target):
    name, host, port = target
    try:
        socket.create_connection((host, port), PARAMS["connect_s"]).close()
        problem = ""
    except ConnectionRefusedError:
        problem = ""  # an answer
    except (socket.timeout, TimeoutError):
        problem = "no answer in %g s" % PARAMS["connect_s"]
    except OSError as error:
        problem = error.strerror or str(error)
    return [name, host, port, problem]
own = {inode for pid in PARAMS["pids"] for inode in inodes(pid)}
seen = [it for it in sockets() if it[0] in own]
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    reached = list(pool.map(reach, PARAMS["targets"]))
print(json.dumps({
    "interfaces": dict(addresses()),
    "listening": sorted({it[2] for it in seen if it[1] == "0A"}),
    "connecting": sorted({it[3] for it in seen if it[1] == "02"}),
    "connected": sorted({it[3][0] for it in seen if it[1] == "01"}),
    "reached": reached,
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Whether a node came through to a port of another; `problem` "" where it got any answer."""

    peer: str
    address: str
    port: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One node's network, and the sockets of the launch's processes in it.

    `connecting`: what they ask in vain at this moment; `connected`: addresses that they are in touch with.
    """

    interfaces: Mapping[str, str]
    listening: tuple[tuple[str, int], ...] = ()
    connecting: tuple[tuple[str, int], ...] = ()
    connected: tuple[str, ...] = ()
    reached: tuple[Reached, ...] = ()

    @property
    def idle(self) -> bool:
        """Nothing of the launch here has begun to meet another node."""
        outside = [address for address, _ in (*self.listening, *self.connecting)] + list(self.connected)
        return all(address.startswith("127.") or address == "::1" for address in outside)


def script(pids: Sequence[int], targets: Sequence[tuple[str, str, int]] = ()) -> str:
    """`targets` are (peer's name, address, port)."""
    told = {"pids": list(pids), "targets": [list(it) for it in targets], "connect_s": CONNECT_S}
    return f"import json\nPARAMS = json.loads({json.dumps(json.dumps(told))})\n{SCRIPT}"


def read_network(done: Execution) -> Network | Missing:
    if done.code != 0:
        why = (
            "it took too long" if done.timed_out else (done.stderr.strip().splitlines() or ["no answer"])[-1]
        )
        return Missing(what="network", why=why[:200])
    try:
        told = json.loads(done.stdout)
        return Network(
            interfaces={str(name): str(address) for name, address in told["interfaces"].items()},
            listening=tuple((str(address), int(port)) for address, port in told["listening"]),
            connecting=tuple((str(address), int(port)) for address, port in told["connecting"]),
            connected=tuple(map(str, told["connected"])),
            reached=tuple(
                Reached(peer=str(peer), address=str(address), port=int(port), problem=str(problem))
                for peer, address, port, problem in told["reached"]
            ),
        )
    except (ValueError, KeyError, TypeError) as problem:
        return Missing(what="network", why=f"its answer cannot be read: {problem}")


def targets_of(peers: Sequence[tuple[str, str, Network]]) -> list[tuple[str, str, int]]:
    """Ports on which other nodes, (name, address, network), wait for a connection from outside."""
    found = []
    for name, address, network in peers[:MOST_PEERS]:
        open_ports = [
            (name, address if listens in ANY else listens, port)
            for listens, port in network.listening
            if not listens.startswith("127.") and listens != "::1" and (listens not in ANY or address)
        ]
        found += open_ports[:PORTS_OF_A_PEER]
    return found


def odd_settings(env: Mapping[str, str], network: Network, address: str) -> tuple[tuple[str, str], ...]:
    """(variable, what is odd about it) for each that names what this node has not, or nobody else reaches."""
    found = []
    for variable in INTERFACE_VARIABLES:
        value = env.get(variable, "")
        if not value or value.startswith("^"):
            continue
        names = [name.partition(":")[0] for name in value.lstrip("=").split(",")]
        here = [
            own
            for own in network.interfaces
            if any(own == name or (variable.startswith("NCCL") and own.startswith(name)) for name in names)
        ]
        if not here:
            has = ", ".join(sorted(network.interfaces)) or "none"
            found.append((variable, f"{variable}={value}, an interface it has not (it has {has})"))
        elif (
            address
            and address not in {network.interfaces[own] for own in here}
            and all(network.interfaces[own].startswith("127.") for own in here)
        ):
            found.append((variable, f"{variable}={value}, an interface that no other node can reach"))
    for variable in ADDRESS_VARIABLES:
        value = env.get(variable, "")
        if value and value not in network.interfaces.values() and value.count(".") == 3:
            has = ", ".join(sorted(filter(None, network.interfaces.values())))
            found.append((variable, f"{variable}={value}, an address it has not (it has {has})"))
    return tuple(found)


def right_setting(variable: str, address: str, network: Network) -> str | None:
    """What a variable that names an interface or an own address should say on the node of this address."""
    if not address:
        return None
    if variable in ADDRESS_VARIABLES:
        return address
    if variable not in INTERFACE_VARIABLES:
        return None
    return next((name for name, own in network.interfaces.items() if own == address), None)
