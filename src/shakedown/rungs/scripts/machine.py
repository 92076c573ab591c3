"""What of this machine would make a launch fail: shared memory, limits, ports, addresses."""

import glob
import resource
import socket

GIB = 1 << 30
INTERFACES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME",
)
OWN_ADDRESSES = ("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP")


def shared_memory():
    """vLLM's ring buffers and NCCL's segments live in /dev/shm; containers give it 64 MiB."""
    path, ranks = PARAMS.get("shm", "/dev/shm"), PARAMS.get("ranks", 1)
    try:
        disk = os.statvfs(path)
    except OSError as error:
        found(
            "shm-size",
            "error",
            f"{path} is missing",
            str(error),
            "workers cannot share memory",
            "mount a tmpfs there",
        )
        return
    free, total = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    needed = (64 << 20) + ranks * (64 << 20)
    told = f"{size_words(free)} free of {size_words(total)}, {ranks} rank(s)"
    if free < needed:
        found(
            "shm-size",
            "error" if free < (32 << 20) else "warning",
            f"{path} is too small",
            told,
            "bus errors, or ranks that wait for one another for ever",
            "start the container with --shm-size=16g or --ipc=host; remove leftovers of dead servers",
        )
    else:
        looked("shm-size", told)
    shm_leftovers(path)


def shm_leftovers(path):
    """Segments that no living process maps: what a killed server left behind. Only named, never removed."""
    mapped = set()
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(maps) as file:
                mapped.update(line.split(maxsplit=5)[-1].strip() for line in file if path in line)
        except OSError:
            continue
    left = []
    for name in os.listdir(path):
        file = os.path.join(path, name)
        if name.startswith(("psm_", "sem.mp-", "torch_", "nccl-", "vllm", "sglang")) and file not in mapped:
            try:
                left.append(os.stat(file).st_blocks * 512)
            except OSError:
                continue
    if left:
        found(
            "shm-leftovers",
            "note" if sum(left) < GIB else "warning",
            f"{len(left)} segments in {path} belong to no living process that can be seen",
            f"{size_words(sum(left))} in all",
            "they take the room of new servers",
            "remove those whose servers are gone, by name",
        )
    else:
        looked("shm-leftovers", "none")


def limits():
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < 4096:
        found(
            "ulimit-nofile",
            "warning",
            "few open files allowed",
            f"ulimit -n is {files}",
            "many connections or shards end in 'Too many open files'",
            "ulimit -n 65536",
        )
    else:
        looked("ulimit-nofile", str(files))
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if PARAMS.get("device") == "cuda" and PARAMS.get("ranks", 1) > 1 and locked != resource.RLIM_INFINITY:
        found(
            "ulimit-memlock",
            "note",
            "locked memory is limited",
            f"ulimit -l is {size_words(locked)}",
            "RDMA between nodes cannot register memory",
            "ulimit -l unlimited",
        )
    room = cgroup_memory()
    if room is not None:
        limit, used = room
        need = PARAMS.get("host_bytes", 0)
        level = "error" if need and limit - used < need else "note"
        found(
            "cgroup-memory",
            level,
            "memory is limited by the control group",
            f"{size_words(used)} of {size_words(limit)} used, about {size_words(need)} needed",
            "the kernel kills the server while it loads" if level == "error" else "",
            "raise the container's limit",
        )


def cgroup_memory():
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            with open(os.path.join(folder, limit)) as a, open(os.path.join(folder, used)) as b:
                told = a.read().strip()
                if told != "max" and int(told) < 1 << 60:
                    return int(told), int(b.read())
        except (OSError, ValueError):
            continue
    return None


def ports():
    for name, number in PARAMS.get("ports", {}).items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", number))
                looked("port-free", f"{name} {number}")
            except OSError as error:
                found(
                    "port-free",
                    "error",
                    f"port {number} ({name}) cannot be had",
                    error.strerror,
                    "the server dies once the weights are loaded, or another answers in its place",
                    "end what holds it (ss -ltnp), or choose another port",
                )
            except OverflowError:
                found(
                    "port-free",
                    "error",
                    f"port {number} ({name}) is above 65535",
                    "the engine adds to it",
                    "the server dies while it starts",
                    "choose a lower port",
                )


def addresses():
    """Variables that name an interface or an address of this machine: a rendezvous waits for a wrong one."""
    names = {name for _, name in socket.if_nameindex()}
    for variable in INTERFACES:
        asked = os.environ.get(variable, "").lstrip("=")
        if not asked or asked.startswith("^"):
            continue
        missing = [
            one for one in asked.split(",") if not any(name.startswith(one.split(":")[0]) for name in names)
        ]
        if missing:
            found(
                "interface",
                "error",
                f"{variable} names no interface of this machine",
                "{}={}; there are {}".format(variable, asked, ", ".join(sorted(names))),
                "the ranks never find one another: a hang in dist_init, or an error after minutes",
                "name one of them, or unset it",
            )
        else:
            looked("interface", f"{variable}={asked}")
    for variable in OWN_ADDRESSES:
        if os.environ.get(variable):
            own_address(variable, os.environ[variable])


def own_address(variable, value):
    try:
        family, _, _, _, where = socket.getaddrinfo(value, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.bind(where)
        looked("host-address", f"{variable}={value}")
    except OSError as error:
        found(
            "host-address",
            "error",
            f"{variable} is no address of this machine",
            f"{variable}={value}: {error.strerror or error}",
            "the server waits for itself at an address where nobody listens",
            "set it to an own address, or unset it",
        )


for look in (shared_memory, limits, ports, addresses):
    look()
