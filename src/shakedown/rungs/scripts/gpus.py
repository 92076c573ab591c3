"""The GPUs of this launch: driver, memory against the model, who else holds them, the paths between."""

import subprocess

OVERHEAD = 1.2  # CUDA contexts, graphs and activations beside the weights: a fifth at least, as a rule
NUMBERS = "--format=csv,noheader,nounits"
PLACES = (("ranks_here", 1), ("first_gpu", 0), ("gpu_step", 1))
VLLM_FRACTION = 0.9  # of a GPU, unless told otherwise: 0.92 in vLLM 0.32, and never less than this before
IMBALANCE = "TP_MEMORY_INBALANCE_CHECK"
ASK = "index,uuid,name,compute_cap,memory.total,memory.used,driver_version,mig.mode.current"


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
    """The rows that CUDA_VISIBLE_DEVICES leaves to this launch, in its order; none where it names slices."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return rows
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if any(name.startswith("MIG-") for name in names):
        not_seen("gpu-visible", f"CUDA_VISIBLE_DEVICES names slices of GPUs (MIG): {asked}")
        return []
    seen = [row_of(name, rows) for name in names]
    if None in seen or not names:
        found(
            "gpu-visible",
            "error",
            "CUDA_VISIBLE_DEVICES " + ("names a GPU that is not there" if names else "hides every GPU"),
            "{!r}; there are {}".format(asked, ", ".join(r[0] for r in rows)),
            "the engine finds no device, or fewer than its ranks",
            "correct it",
        )
    return [row for row in seen if row]


def row_of(name, rows):
    """By number or by UUID, of which CUDA takes any beginning that is one GPU's alone."""
    fitting = [row for row in rows if name == row[0] or (name[:4] == "GPU-" and row[1].startswith(name))]
    return fitting[0] if len(fitting) == 1 else None


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
    """What is free for each rank against what the engine wants; other holders are named, never ended."""
    holders = {}
    for uuid, pid, used in smi("--query-compute-apps=gpu_uuid,pid,used_memory", NUMBERS) or ():
        holders.setdefault(uuid, []).append((pid, used))
    ranks, begin, step = (PARAMS.get(name, default) for name, default in PLACES)
    if not ranks:
        not_seen("gpu-memory", "Ray places the ranks")
    chosen = rows[begin::step][:ranks]
    frees = {}
    for index, uuid, name, _, total, used, _, mig in chosen:
        told = f"GPU {index} ({name}): {used} of {total} MiB used"
        if mig == "Enabled" or not (total.isdecimal() and used.isdecimal()):
            why = "it is cut into slices (MIG)" if mig == "Enabled" else "nvidia-smi does not know"
            not_seen("gpu-memory", f"{told}; {why}")
            continue
        frees[index] = (int(total) - int(used)) << 20
        others = "; ".join(who(*each) for each in holders.get(uuid, ()))
        judge_memory(index, told, int(total) << 20, frees[index], others)
    judge_balance(frees)
    if ranks > len(chosen):
        found(
            "gpu-count",
            "error",
            "fewer GPUs than ranks",
            f"{len(chosen)} GPUs, {ranks} ranks",
            "the engine stops, or waits for ranks that cannot start",
            "lower the parallel sizes",
        )


def judge_memory(index, told, total, free, others):
    """vLLM takes its fraction of the whole GPU and must find it free, SGLang of what is free at its start."""
    share = PARAMS.get("weight_bytes", 0) / max(1, PARAMS.get("ranks", 1))
    fraction, vllm = PARAMS.get("memory_fraction", 0), PARAMS.get("engine") == "vllm"
    budget = (fraction or VLLM_FRACTION) * total if vllm else (fraction or 1) * free
    level, need, why = "", share, f"for its share of the weights, and it may fill {size_words(budget)}"
    if budget > free:
        level, need, why = "error", budget, f"as vLLM takes {budget / total:g} of the whole GPU"
    elif share > budget:
        level = "error" if PARAMS.get("weights_as_stored", True) else "warning"
    elif share * OVERHEAD > free:
        level, need, why = "warning", share * OVERHEAD, "for its share of the weights and what lies beside"
    if level:
        held = "; held by " + others if others else ""
        found(
            "gpu-memory",
            level,
            f"GPU {index} has not the memory for this launch",
            f"{told}, {size_words(need)} needed {why}{held}",
            "out of memory while it loads",
            "choose another GPU, ask who holds it, or change the fraction of memory that it may fill",
        )
    elif others:
        found("gpu-shared", "note", f"others use GPU {index}", others, "their load slows this launch")
    else:
        looked("gpu-memory", told)


def judge_balance(frees):
    """SGLang 0.5.14 refuses ranks of which one finds a tenth less free than another."""
    if PARAMS.get("engine") != "sglang" or PARAMS.get("tensor_ranks", 1) < 2 or len(frees) < 2:
        return
    least, most = min(frees, key=frees.get), max(frees, key=frees.get)
    if frees[least] < 0.9 * frees[most] and not any(IMBALANCE in name for name in os.environ):
        found(
            "gpu-balance",
            "error",
            "these GPUs are not equally free",
            f"{size_words(frees[least])} on GPU {least}, {size_words(frees[most])} on GPU {most}",
            "SGLang stops: the memory capacity is unbalanced",
            f"choose other GPUs, or SGLANG_ENABLE_{IMBALANCE}=0",
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
    rows = smi("--query-gpu=" + ASK, NUMBERS)
    if rows is None:
        if not os.path.exists("/dev/nvidiactl"):
            not_seen("gpu", "no NVIDIA driver here")
        return
    if rows:
        torch_fits(rows[0][6])
    rows = mine(rows)
    if rows:
        memory(rows)
        paths(rows)


main()
