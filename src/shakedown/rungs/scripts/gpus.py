"""The GPUs of this launch: driver, memory against the model, who else holds them, the paths between."""

import subprocess

GIB = 1 << 30
OVERHEAD = 1.2  # CUDA contexts, graphs and activations beside the weights: a fifth at least, as a rule
ASK = "index,uuid,name,compute_cap,memory.total,memory.used,driver_version"


def smi(*arguments, deadline_s=15):
    """Rows of nvidia-smi, or None: it hangs where the driver does."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=deadline_s,
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        found(
            "gpu-driver",
            "error",
            "nvidia-smi does not answer",
            f"{deadline_s} s",
            "the driver is stuck: every CUDA program hangs",
            "look at dmesg for Xid lines; the machine may need a reboot",
        )
        return None
    if done.returncode:
        found(
            "gpu-driver",
            "error",
            "nvidia-smi fails",
            done.stdout.strip()[:300],
            "no CUDA program starts",
            "mend the driver first",
        )
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def mine(rows):
    """The rows that CUDA_VISIBLE_DEVICES leaves to this launch, in its order."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return rows
    by = {row[0]: row for row in rows}
    by.update({row[1]: row for row in rows})
    names = [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [name for name in names if name not in by]
    if unknown or not names:
        found(
            "gpu-visible",
            "error",
            "CUDA_VISIBLE_DEVICES hides every GPU"
            if not names
            else "CUDA_VISIBLE_DEVICES names a GPU that is not there",
            "{!r}; there are {}".format(asked, ", ".join(r[0] for r in rows)),
            "the engine finds no device, or fewer than its ranks",
            "correct it",
        )
    return [by[name] for name in names if name in by]


def torch_fits(driver):
    """torch's CUDA against the driver's: its version file says what it was built for, without an import."""
    import importlib.util
    import re

    spec = importlib.util.find_spec("torch")
    path = os.path.join(os.path.dirname(spec.origin), "version.py") if spec and spec.origin else ""
    if not os.path.exists(path):
        not_seen("torch-cuda", "torch is not installed in this interpreter")
        return
    with open(path) as file:
        built = re.search(r"^cuda.*?=\s*'([\d.]+)'", file.read(), re.MULTILINE)
    header = smi()
    can = re.search(r"CUDA Version:\s*([\d.]+)", "\n".join(",".join(row) for row in header or ()))
    if not built:
        found(
            "torch-cuda",
            "error" if PARAMS.get("device") == "cuda" else "note",
            "torch is built without CUDA",
            path,
            "it runs on the CPU only",
            "install a CUDA build",
        )
    elif can and int(built.group(1).split(".")[0]) > int(can.group(1).split(".")[0]):
        found(
            "torch-cuda",
            "error",
            "torch's CUDA is newer than the driver's",
            f"torch for {built.group(1)}, driver {driver} for {can.group(1)}",
            "CUDA does not start",
            "update the driver, or install torch for an older CUDA",
        )
    else:
        looked("torch-cuda", f"torch for CUDA {built.group(1)}, driver {driver}")


def memory(rows):
    """Each rank's share of the weights against what is free; other holders are named, never ended."""
    holders = {}
    for uuid, pid, used in (
        smi("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits") or ()
    ):
        holders.setdefault(uuid, []).append((pid, used))
    ranks = PARAMS.get("ranks", 1)
    need = PARAMS.get("weight_bytes", 0) / max(1, ranks) * OVERHEAD
    for index, uuid, name, _, total, used, _ in rows[:ranks]:
        free = (float(total) - float(used)) * (1 << 20)
        asked = PARAMS.get("memory_fraction", 0) * float(total) * (1 << 20)
        told = f"GPU {index} ({name}): {used} of {total} MiB used"
        others = "; ".join(who(*each) for each in holders.get(uuid, ()))
        if free < max(need, asked):
            found(
                "gpu-memory",
                "error",
                f"GPU {index} has not the memory for this launch",
                "{}, {} needed{}".format(
                    told, size_words(max(need, asked)), "; held by " + others if others else ""
                ),
                "out of memory while it loads",
                "choose another GPU, or ask who holds it",
            )
        elif others:
            found("gpu-shared", "note", f"others use GPU {index}", others, "their load slows this launch")
        else:
            looked("gpu-memory", told)
    if ranks > len(rows):
        found(
            "gpu-count",
            "error",
            "fewer GPUs than ranks",
            f"{len(rows)} GPUs, {ranks} ranks",
            "the engine stops, or waits for ranks that cannot start",
            "lower the parallel sizes",
        )


def who(pid, used):
    try:
        stat = os.stat("/proc/" + pid)
        with open(f"/proc/{pid}/comm") as file:
            return f"pid {pid} ({file.read().strip()}, uid {stat.st_uid}, {used} MiB)"
    except OSError:
        return f"pid {pid} (not visible from here, {used} MiB)"


def paths(rows):
    """Peer to peer between this launch's GPUs, and what is known to break it."""
    if len(rows) < 2:
        return
    matrix = smi("topo", "-p2p", "r")
    lines = [" ".join(row).split() for row in matrix or ()]
    wanted = {row[0] for row in rows}
    bad = sorted(
        {
            f"GPU{line[0][3:]}-{cell}"
            for line in lines
            if line and line[0][:3] == "GPU" and line[0][3:] in wanted
            for cell in line[1:]
            if cell in ("CNS", "GNS", "TNS", "NS", "U")
        }
    )
    if bad:
        found(
            "gpu-p2p",
            "warning",
            "no peer-to-peer between some of this launch's GPUs",
            ", ".join(bad),
            "custom all-reduce and NCCL take slower ways, or hang where they believe otherwise",
            "NCCL_P2P_DISABLE=1, or --disable-custom-all-reduce, shows whether it matters",
        )
    else:
        looked("gpu-p2p", "all pairs")
    groups = os.listdir("/sys/kernel/iommu_groups") if os.path.isdir("/sys/kernel/iommu_groups") else []
    if groups:
        found(
            "iommu",
            "warning",
            "the IOMMU is on",
            f"{len(groups)} groups",
            "peer-to-peer through PCIe may hang or corrupt (ACS)",
            "iommu=pt or off, ACS off, where the machine is yours",
        )
    else:
        looked("iommu", "off")


def main():
    rows = smi("--query-gpu=" + ASK, "--format=csv,noheader,nounits")
    if rows is None:
        if not os.path.exists("/dev/nvidiactl"):
            not_seen("gpu", "no NVIDIA driver here")
        return
    rows = mine(rows)
    if rows:
        torch_fits(rows[0][6])
        memory(rows)
        paths(rows)


main()
