"""Whether the kernel libraries load: each alone, and after torch, in a process that may die of it.

A library that needs torch's symbols loads only after `import torch`; one that loads in neither way is broken.
"""

import subprocess

LOAD = """
import ctypes, sys
if sys.argv[1] == "after":
    import torch
for path in sys.stdin.read().split():
    print("try", path, flush=True)
    try:
        ctypes.CDLL(path)
        print("yes", path, flush=True)
    except OSError as error:
        print("no", path, str(error).replace(chr(10), " ")[:300], flush=True)
"""


def load(paths, mode, deadline_s):
    """Path to why it did not load ("" where it did). What the process died at is named as that."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOAD, mode],
            input="\n".join(paths),
            text=True,
            timeout=deadline_s,
            capture_output=True,
            start_new_session=True,
        )
        output, ended = done.stdout, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if error.stdout else ""
        ended = f"it did not come back within {deadline_s:.0f} s"
    told, trying = {}, None
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        path, _, why = rest.partition(" ")
        if word == "try":
            trying = path
        elif word in ("yes", "no"):
            told[path], trying = why, None
    if trying:
        told[trying] = f"the process ended while loading it ({ended})"
    return told


def main():
    from importlib import metadata

    names = PARAMS.get("distributions") or ("sgl-kernel", "sglang-kernel", "vllm", "flash-attn", "deep-gemm")
    paths = []
    for distribution in metadata.distributions():
        if (distribution.metadata["Name"] or "").lower() in names:
            files = [f for f in distribution.files or () if f.suffix == ".so" and for_this_python(f.name)]
            paths += [path for file in files if os.path.exists(path := str(distribution.locate_file(file)))]
    if not paths:
        not_seen("kernel-loading", "no kernel library of an engine is installed in this interpreter")
        return
    after = load(paths, "after", PARAMS.get("deadline_s", 40))
    alone = load([path for path in paths if not after.get(path, "x")], "alone", 15)
    for path in paths:
        judge(path, after.get(path, "torch could not be imported first"), alone.get(path, ""))


def judge(path, after, alone):
    name = os.path.basename(path)
    if after:
        found(
            "kernel-loading",
            "error" if PARAMS.get("device") == "cuda" else "note",
            f"{name} does not load, not even after torch",
            after,
            "the engine dies at import, or falls back in silence",
            "reinstall its package for this torch and CUDA",
        )
    elif alone:
        found(
            "kernel-loading",
            "note",
            f"{name} loads only once torch is loaded",
            alone,
            "`import` of it alone fails; engines import torch first",
        )
    else:
        looked("kernel-loading", f"{name} loads alone and after torch")


main()
