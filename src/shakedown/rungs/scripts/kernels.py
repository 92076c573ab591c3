"""Which GPU code the installed kernel libraries hold, read from the files themselves, against this chip.

A shared library keeps its code in fat binaries: a header (magic BA55ED50), then entries of kind 1 (PTX)
or 2 (machine code) with the chip they are for. The bits 0x100000 and 0x200000 of an entry's flags mark
the targets that nvcc writes with an `a` (that chip only) and an `f` (that family only).
"""

import mmap
import struct
from importlib import metadata

MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
EXACT, FAMILY = 0x100000, 0x200000
SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
KERNEL_WORDS = (
    "torch",
    "vllm",
    "sgl",
    "flash",
    "xformers",
    "triton",
    "deep_gemm",
    "deep-gemm",
    "deep_ep",
    "cutlass",
    "quack",
    "causal",
    "mamba",
    "bitsandbytes",
    "kernel",
    "tvm_ffi",
    "fla",
    "auto_gptq",
    "awq",
)


def targets_in(data):
    """The (kind, chip, flags) of every entry: chip 90 is compute capability 9.0."""
    entries = set()
    for start, size in fat_sections(data):
        at, end = start, start + size
        while at + 16 <= end:
            magic, _, header_bytes, body_bytes = struct.unpack_from("<IHHQ", data, at)
            if magic != MAGIC:
                at += 8  # fat binaries are aligned to 8 bytes, with padding between them
                continue
            entry, at = at + header_bytes, at + header_bytes + body_bytes
            while entry + 64 <= min(at, end):
                kind, _, entry_bytes, payload_bytes = struct.unpack_from("<HHIQ", data, entry)
                if kind not in (PTX, MACHINE_CODE) or not entry_bytes:
                    break
                chip = struct.unpack_from("<I", data, entry + 28)[0]
                flags = struct.unpack_from("<Q", data, entry + 40)[0]
                entries.add((kind, chip, flags & (EXACT | FAMILY)))
                entry += entry_bytes + payload_bytes
    return entries


def fat_sections(data):
    """Offset and size of the sections of a 64-bit little-endian ELF file that hold fat binaries."""
    if data[:6] != b"\x7fELF\x02\x01":
        return
    table = struct.unpack_from("<Q", data, 0x28)[0]
    width, count, names_at = struct.unpack_from("<HHH", data, 0x3A)
    if not table or table + width * count > len(data):
        return

    def section(number):
        return struct.unpack_from("<IIQQQQ", data, table + number * width)

    names = section(names_at)[4]
    for number in range(count):
        name_at, kind, _, _, offset, size = section(number)
        name = data[names + name_at : names + name_at + 32].split(b"\0", 1)[0]
        if name in SECTIONS and kind != 8:  # 8: takes no room in the file
            yield offset, size


def runs_on(entry, capability):
    """Machine code: same major, minor not above ours; `a` exact; `f` family. PTX: forward, not for `a`."""
    kind, chip, flags = entry
    ours = capability[0] * 10 + capability[1]
    if flags & EXACT:
        return chip == ours
    same_major = chip // 10 == capability[0]
    if kind == PTX and not flags & FAMILY:
        return chip <= ours
    return same_major and chip % 10 <= capability[1]


def named(entry):
    kind, chip, flags = entry
    suffix = "a" if flags & EXACT else "f" if flags & FAMILY else ""
    return ("compute_" if kind == PTX else "sm_") + str(chip) + suffix


def this_chip():
    """The lowest compute capability among this launch's GPUs, or None without one."""
    if PARAMS.get("capability"):
        return tuple(PARAMS["capability"])
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    seen = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        seen.append((major.value, minor.value))
    return min(seen)


def kernel_libraries():
    """(distribution, version, path) of every shared library that a package with kernels has installed."""
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith(("nvidia-", "cuda-")) or not any(word in name for word in KERNEL_WORDS):
            continue
        for file in distribution.files or ():
            if (file.suffix == ".so" or ".so." in file.name) and for_this_python(file.name):
                yield name, distribution.version, distribution.locate_file(file)


def read_library(path):
    """Targets of one library, None where it cannot be read; an empty set where it holds no GPU code."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return targets_in(data)
    except (OSError, ValueError, struct.error):
        return None


def main():
    capability = this_chip()
    packages = {}
    for name, version, path in kernel_libraries():
        targets = read_library(path)
        if targets:
            packages.setdefault((name, version), []).append((str(path), targets))
    for (name, version), libraries in sorted(packages.items()):
        held = sorted({named(entry) for _, targets in libraries for entry in targets})
        if capability is None:
            not_seen(
                "kernel-code", "no GPU here: {} {} holds code for {}".format(name, version, ", ".join(held))
            )
            continue
        judge(name, version, libraries, capability)
    if not packages:
        not_seen("kernel-code", "no library with GPU code is installed in this interpreter")


def judge(name, version, libraries, capability):
    """A package fails where none of its libraries has code for the chip; single ones are often for others."""
    chip = f"sm_{capability[0]}{capability[1]}"
    lacking = [
        (path, targets)
        for path, targets in libraries
        if not any(runs_on(each, capability) for each in targets)
    ]
    if not lacking:
        looked(
            "kernel-code",
            f"{name} {version} has code for {chip} in {len(libraries)} of {len(libraries)} libraries",
        )
        return
    files = "; ".join(
        f"{os.path.basename(path)} holds {', '.join(sorted(map(named, targets)))}"
        for path, targets in lacking[:4]
    )
    if len(lacking) < len(libraries):
        found(
            "kernel-code",
            "note",
            f"{name} {version}: {len(lacking)} of {len(libraries)} libraries have no code for {chip}",
            files,
            "only what needs these libraries: they may be meant for other chips",
        )
        return
    found(
        "kernel-code",
        "error",
        f"{name} {version} has no code for this chip ({chip})",
        files,
        "its first kernel fails with 'no kernel image is available', or hangs where errors are not read",
        f"install a build for {chip}, or build it with TORCH_CUDA_ARCH_LIST={capability[0]}.{capability[1]}",
    )


main()
