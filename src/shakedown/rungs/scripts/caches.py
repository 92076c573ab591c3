"""Whether the folders that compilers and downloads write to take what they write, and wait for nobody.

It creates one unnamed temporary file in each, and removes nothing.
"""

import errno
import fcntl
import glob
import tempfile

GIB = 1 << 30
STALE_S = 600
NETWORK_DISKS = tuple(PARAMS["networks"])
CACHES = (
    ("HF_HOME", "~/.cache/huggingface"),
    ("VLLM_CACHE_ROOT", "~/.cache/vllm"),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("TRITON_CACHE_DIR", "~/.triton/cache"),
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions"),
    ("FLASHINFER_WORKSPACE_BASE", ""),
    ("DG_JIT_CACHE_DIR", "~/.deep_gemm"),
    ("TMPDIR", "/tmp"),
)
JIT_LOCKS = (
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions", "**/lock"),
    ("FLASHINFER_WORKSPACE_BASE", "~/.cache/flashinfer", "**/*.lock"),
)


def mount_of(path):
    """(mount point, type) of the file system that holds a path."""
    best = ("/", "")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, point, kind = line.split()[:3]
            point = point.replace("\\040", " ")
            if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = (point, kind)
    return best


def existing(path):
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def caches():
    for variable, usual in CACHES:
        path = os.environ.get(variable) or usual
        if path:
            cache(variable, os.path.abspath(os.path.expanduser(path)))


def cache(variable, path):
    there = existing(path)
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        full = error.errno == errno.ENOSPC
        found(
            "cache-writable",
            "error",
            f"{path} cannot be written",
            f"{variable}: {error.strerror}",
            "compilers stop with 'No space left'"
            if full
            else "compiling and downloading fail after the weights are loaded",
            f"free room there, or set {variable} to a folder of yours",
        )
        return
    disk = os.statvfs(there)
    free = disk.f_bavail * disk.f_frsize
    point, kind = mount_of(os.path.realpath(there))
    if free < GIB:
        found(
            "cache-room",
            "warning",
            f"little room in {path}",
            f"{size_words(free)} free on {point}",
            "a compiler or a download runs out of it",
            f"free room there, or set {variable} elsewhere",
        )
    elif kind.startswith(NETWORK_DISKS) and variable not in ("HF_HOME", "TMPDIR"):
        found(
            "cache-local",
            "warning",
            f"{path} lies on a network disk",
            f"{point} is {kind}",
            "compilers wait for its locks: minutes of silence, or for ever",
            f"set {variable} to a local folder",
        )
    else:
        looked("cache-writable", f"{variable}: {path}, {size_words(free)} free")


def locks():
    """Compiler locks: torch waits for ever while its lock *file* stands; a flock nobody holds is harmless."""
    for variable, usual, pattern in JIT_LOCKS:
        folder = os.path.expanduser(os.environ.get(variable) or usual)
        for path in glob.glob(os.path.join(folder, pattern), recursive=True)[:200]:
            lock(path, by_existence=pattern.endswith("/lock"))


def lock(path, by_existence):
    try:
        age_s = time.time() - os.stat(path).st_mtime
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held = False
    except BlockingIOError:
        held = True
    except OSError:
        return
    if held:
        found(
            "jit-lock",
            "warning",
            "a compiler's lock is held by a living process",
            path,
            "this launch waits until it lets go",
            "let it finish, or end it",
        )
    elif by_existence and age_s > STALE_S:
        found(
            "jit-lock",
            "error",
            "a compiler's lock was left behind",
            f"{path}, {age_s / 60:.0f} min old",
            "torch waits for ever for whoever wrote it",
            "remove this file once no build is going on",
        )


caches()
locks()
