"""Each check finds what was planted, and finds nothing where nothing is wrong."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import CheckLevel, Execution
from shakedown.ledger.place import file_system
from shakedown.rungs import CHECKS, parameters, read_findings, script_text

SCRIPTS = {script.name: script for script in CHECKS}


def look(name, told=None, **env):
    """The findings of one script, run as `check` runs it: fed to an interpreter on its standard input."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=script_text(name),
        env={**os.environ, **parameters(told or {}), **env},
        text=True,
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    execution = Execution(code=0, stdout=done.stdout, stderr=done.stderr, timed_out=False, seconds=0.0)
    return read_findings(SCRIPTS[name], execution)


def levels(findings, rule):
    return {found.level for found in findings if found.rule == rule}


# --- the machine -----------------------------------------------------------------------------------------


def test_a_held_port_is_named_and_a_free_one_is_not():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        held = holder.getsockname()[1]
        assert levels(look("machine", {"ports": {"port": held}}), "port-free") == {CheckLevel.ERROR}
    assert levels(look("machine", {"ports": {"port": held}}), "port-free") == {CheckLevel.OK}


def test_a_port_that_the_engine_adds_to_may_not_exist():
    assert levels(look("machine", {"ports": {"added": 66000}}), "port-free") == {CheckLevel.ERROR}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_small_shared_memory_is_named(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is refused here")
    try:
        found = look("machine", {"shm": str(tmp_path), "ranks": 2})
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert levels(found, "shm-size") == {CheckLevel.ERROR}


def test_enough_shared_memory_and_a_leftover_of_a_dead_server(tmp_path):
    (tmp_path / "psm_dead").write_bytes(b"x" * 4096)
    found = look("machine", {"shm": str(tmp_path)})
    assert levels(found, "shm-size") == {CheckLevel.OK}
    assert levels(found, "shm-leftovers") == {CheckLevel.NOTE}
    (tmp_path / "psm_dead").unlink()
    assert levels(look("machine", {"shm": str(tmp_path)}), "shm-leftovers") == {CheckLevel.OK}


@pytest.mark.parametrize(
    ("variable", "wrong", "right", "rule"),
    [
        ("GLOO_SOCKET_IFNAME", "nosuch9", "lo", "interface"),
        ("NCCL_SOCKET_IFNAME", "=nosuch9", "=lo", "interface"),
        ("VLLM_HOST_IP", "203.0.113.7", "127.0.0.1", "host-address"),
    ],
)
def test_a_variable_that_points_nowhere_is_named(variable, wrong, right, rule):
    assert levels(look("machine", **{variable: wrong}), rule) == {CheckLevel.ERROR}
    assert levels(look("machine", **{variable: right}), rule) == {CheckLevel.OK}


def test_few_open_files_are_a_warning():
    program = (
        "import resource, os, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
        "os.execv(sys.executable, [sys.executable, '-'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=script_text("machine"),
        text=True,
        capture_output=True,
        check=True,
    )
    execution = Execution(code=0, stdout=done.stdout, stderr="", timed_out=False, seconds=0.0)
    assert levels(read_findings(SCRIPTS["machine"], execution), "ulimit-nofile") == {CheckLevel.WARNING}


# --- caches ----------------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    found = look("caches", TRITON_CACHE_DIR="/proc/self/triton")
    assert CheckLevel.ERROR in levels(found, "cache-writable")
    assert levels(look("caches", TRITON_CACHE_DIR=str(tmp_path)), "cache-writable") == {CheckLevel.OK}


def test_a_compiler_lock_left_behind_is_an_error_a_fresh_one_is_not(tmp_path):
    lock = tmp_path / "py311" / "my_op" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    assert levels(look("caches", TORCH_EXTENSIONS_DIR=str(tmp_path)), "jit-lock") == set()
    old = time.time() - 3600
    os.utime(lock, (old, old))
    assert levels(look("caches", TORCH_EXTENSIONS_DIR=str(tmp_path)), "jit-lock") == {CheckLevel.ERROR}


def test_a_cache_on_a_network_disk_is_named(tmp_path):
    here = file_system(tmp_path)
    found = look("caches", {"networks": [here]}, TRITON_CACHE_DIR=str(tmp_path))
    assert CheckLevel.WARNING in levels(found, "cache-local")
    found = look("caches", {"networks": ["another"]}, TRITON_CACHE_DIR=str(tmp_path))
    assert levels(found, "cache-local") == set()


# --- the model -------------------------------------------------------------------------------------------


def write_model(folder: Path, *, rows=8, highest=7, shards=2):
    """A folder as an engine expects it, with one small tensor a shard."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": rows})
    )
    names = ["model.embed_tokens.weight", *[f"model.layers.{i}.w" for i in range(1, shards)]]
    placed = {}
    for number, name in enumerate(names):
        file = f"model-{number:05d}.safetensors"
        data = bytes(rows * 4 * 2)
        header = json.dumps(
            {name: {"dtype": "BF16", "shape": [rows, 4], "data_offsets": [0, len(data)]}}
        ).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(header)) + header + data)
        placed[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": highest}}}))
    return folder


def test_a_whole_model_has_nothing_to_say(tmp_path):
    found = look("model", {"model": str(write_model(tmp_path / "m"))})
    assert {each.level for each in found} == {CheckLevel.OK}


def cut_short(folder):
    shard = folder / "model-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-9])


def swap_for_pointer(folder):
    (folder / "model-00001.safetensors").write_bytes(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )


def flip_header(folder):
    shard = folder / "model-00000.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b'"shape": [8', b'"shape": [9'))


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (cut_short, "model-shards"),
        (swap_for_pointer, "model-shards"),
        (flip_header, "model-shards"),
        (lambda folder: (folder / "model-00001.safetensors").unlink(), "model-shards"),
        (lambda folder: (folder / "config.json").unlink(), "model-config"),
        (lambda folder: (folder / "config.json").write_text("{"), "model-config"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "model-tokenizer"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "model-tokenizer"),
    ],
)
def test_what_is_broken_in_a_model_folder_is_named(tmp_path, plant, rule):
    folder = write_model(tmp_path / "m")
    plant(folder)
    assert CheckLevel.ERROR in levels(look("model", {"model": str(folder)}), rule)


def test_a_tokenizer_of_another_model_does_not_fit(tmp_path):
    folder = write_model(tmp_path / "m", rows=8, highest=8)
    assert levels(look("model", {"model": str(folder)}), "model-tokenizer") == {CheckLevel.ERROR}


def test_a_named_model_must_be_in_the_cache_where_the_hub_may_not_be_asked(tmp_path):
    env = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    assert levels(look("model", {"model": "org/name"}, **env), "model-cached") == {CheckLevel.ERROR}
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert levels(look("model", {"model": "org/name"}, **env), "model-cached") == {CheckLevel.OK}


# --- the engine ------------------------------------------------------------------------------------------


def write_vllm(site: Path):
    """The part of vLLM's sources that is read: a registry, a model with an interface, one without."""
    models = site / "vllm" / "model_executor" / "models"
    models.mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    (models / "registry.py").write_text(
        '_TEXT = {"GoodForCausalLM": ("good", "GoodForCausalLM"), "ChildForCausalLM": ("child", "Child"),'
        ' "BareForCausalLM": ("bare", "Bare")}'
    )
    (models / "good.py").write_text("class GoodForCausalLM(Module, SupportsEagle3): pass")
    (models / "child.py").write_text("from .good import GoodForCausalLM as G\nclass Child(G): pass")
    (models / "bare.py").write_text("class Bare(Module): pass")


@pytest.mark.parametrize(
    ("architecture", "known", "states"),
    [
        ("GoodForCausalLM", CheckLevel.OK, {CheckLevel.OK}),
        ("ChildForCausalLM", CheckLevel.OK, {CheckLevel.OK}),
        ("BareForCausalLM", CheckLevel.OK, {CheckLevel.ERROR}),
        ("NewForCausalLM", CheckLevel.ERROR, set()),
    ],
)
def test_the_engines_own_sources_say_what_it_serves(tmp_path, architecture, known, states):
    write_vllm(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    told = {"engine": "vllm", "model": str(tmp_path), "eagle3": True}
    found = look("engine", told, PYTHONPATH=str(tmp_path))
    assert levels(found, "engine-architecture") == {known}
    assert levels(found, "engine-eagle3") == states


# --- the GPUs --------------------------------------------------------------------------------------------

SMI = """
import json, sys
told = json.load(open(__file__ + ".json"))
kind, _, names = sys.argv[-2].partition("=") if len(sys.argv) > 2 else ("", "", "")
for row in told.get(kind, []):
    print(", ".join(row.get(name, "[N/A]") for name in names.split(",")))
"""
H200_MIB, UUIDS = 143771, ("GPU-8d1c1f2a-0b3c", "GPU-8e55aa10-77d2")


def look_at_gpus(folder: Path, told=None, *, used_mib=(4, 4), held_mib=(0, 0), gpu=None, **env):
    """With a program in nvidia-smi's place that tells of two H200: what others hold of each is in `used`."""
    gpus = [
        {
            "index": str(number),
            "uuid": UUIDS[number],
            "name": "NVIDIA H200",
            "compute_cap": "9.0",
            "memory.total": str(H200_MIB),
            "memory.used": str(used_mib[number] + held_mib[number]),
            "driver_version": "580.65.06",
            "mig.mode.current": "Disabled",
            **(gpu or {}),
        }
        for number in range(2)
    ]
    apps = [
        {"gpu_uuid": UUIDS[number], "pid": "999999999", "used_memory": str(held)}
        for number, held in enumerate(held_mib)
        if held
    ]
    (folder / "nvidia-smi").write_text(f"#!{sys.executable}{SMI}")
    (folder / "nvidia-smi").chmod(0o755)
    told_by_smi = {"--query-gpu": gpus, "--query-compute-apps": apps}
    (folder / "nvidia-smi.json").write_text(json.dumps(told_by_smi))
    return look("gpus", told, PATH=f"{folder}:{os.environ['PATH']}", **env)


@pytest.mark.parametrize(
    ("visible", "level", "seen"),
    [
        ("0", None, ["GPU 0"]),
        ("1", None, ["GPU 1"]),
        (UUIDS[1], None, ["GPU 1"]),
        ("GPU-8e", None, ["GPU 1"]),  # CUDA takes any beginning that is one GPU's alone
        ("GPU-8", CheckLevel.ERROR, []),
        ("2", CheckLevel.ERROR, []),
        ("", CheckLevel.ERROR, []),
        ("MIG-2f0a1b5c-1d", CheckLevel.UNKNOWN, []),
    ],
)
def test_the_visible_gpus_are_found_as_cuda_finds_them(tmp_path, visible, level, seen):
    found = look_at_gpus(tmp_path, CUDA_VISIBLE_DEVICES=visible)
    assert levels(found, "gpu-visible") == ({level} if level else set())
    assert [each.evidence[:5] for each in found if each.rule == "gpu-memory"] == seen


@pytest.mark.parametrize(
    ("told", "held_mib", "level"),
    [
        ({"engine": "sglang", "memory_fraction": 0.88}, 40_000, None),  # of what is free at its start
        ({"engine": "vllm", "memory_fraction": 0.88}, 40_000, CheckLevel.ERROR),  # of all of it
        ({"engine": "vllm", "memory_fraction": 0.5}, 40_000, None),
        ({"engine": "vllm"}, 40_000, CheckLevel.ERROR),  # its default
        ({"engine": "vllm"}, 0, CheckLevel.OK),
        ({"engine": "sglang", "memory_fraction": 0.5, "weight_bytes": 80 << 30}, 0, CheckLevel.ERROR),
        ({"engine": "sglang", "memory_fraction": 0.9, "weight_bytes": 80 << 30}, 0, CheckLevel.OK),
        ({"engine": "sglang", "memory_fraction": 0.9, "weight_bytes": 80 << 30}, 70_000, CheckLevel.ERROR),
        ({"engine": "vllm", "memory_fraction": 0.5, "weight_bytes": 80 << 30}, 0, CheckLevel.ERROR),
        ({"weight_bytes": 120 << 30}, 0, CheckLevel.WARNING),  # they fit, and hardly anything else
        ({"weight_bytes": 150 << 30}, 0, CheckLevel.ERROR),
        ({"weight_bytes": 150 << 30, "weights_as_stored": False}, 0, CheckLevel.WARNING),
        ({"weight_bytes": 150 << 30, "ranks": 2, "ranks_here": 2}, 0, CheckLevel.OK),
    ],
)
def test_memory_is_held_against_what_the_engine_takes_of_it(tmp_path, told, held_mib, level):
    found = look_at_gpus(tmp_path, {"device": "cuda", **told}, held_mib=(held_mib, 0))
    assert levels(found, "gpu-memory") == ({level} if level else set())
    assert (levels(found, "gpu-shared") == {CheckLevel.NOTE}) is (level is None)


@pytest.mark.parametrize(
    ("unknown", "why"),
    [
        ({"memory.total": "[N/A]", "memory.used": "[N/A]"}, "nvidia-smi does not know"),  # it is the host's
        ({"mig.mode.current": "Enabled"}, "slices"),
    ],
)
def test_memory_that_is_not_told_is_not_judged(tmp_path, unknown, why):
    (found,) = (each for each in look_at_gpus(tmp_path, gpu=unknown) if each.rule == "gpu-memory")
    assert found.level is CheckLevel.UNKNOWN
    assert why in found.evidence


def test_sglang_wants_its_gpus_equally_free(tmp_path):
    told = {"engine": "sglang", "ranks": 2, "ranks_here": 2, "tensor_ranks": 2}
    assert levels(look_at_gpus(tmp_path, told, held_mib=(40_000, 0)), "gpu-balance") == {CheckLevel.ERROR}
    assert not levels(look_at_gpus(tmp_path, told, held_mib=(4_000, 0)), "gpu-balance")
    assert not levels(look_at_gpus(tmp_path, told | {"engine": "vllm"}, held_mib=(9, 0)), "gpu-balance")
    off = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
    assert not levels(look_at_gpus(tmp_path, told, held_mib=(40_000, 0), **off), "gpu-balance")


def test_only_the_gpus_on_which_ranks_will_be_are_counted_and_judged(tmp_path):
    busy = {"held_mib": (143_000, 0)}
    second = look_at_gpus(tmp_path, {"first_gpu": 1, "weight_bytes": 80 << 30}, **busy)
    assert levels(second, "gpu-memory") == {CheckLevel.OK}
    many = look_at_gpus(tmp_path, {"ranks": 4, "ranks_here": 4})
    assert levels(many, "gpu-count") == {CheckLevel.ERROR}
    assert not levels(look_at_gpus(tmp_path, {"ranks": 4, "ranks_here": 2}), "gpu-count")
    by_ray = look_at_gpus(tmp_path, {"ranks": 4, "ranks_here": 0}, **busy)
    assert levels(by_ray, "gpu-memory") == {CheckLevel.UNKNOWN}


# --- GPU code --------------------------------------------------------------------------------------------

PTX, CUBIN, EXACT, FAMILY = 1, 2, 0x100000, 0x200000


def fat_library(*entries):
    """A shared library with one fat binary, as nvcc 13.0 lays it out: an entry is (kind, chip, flags)."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, 64, 16, 0, 0, 8, 1, chip, 0, 0, 0x11 | flags, 0, 0)
        + bytes(16)
        for kind, chip, flags in entries
    )
    fat = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    names = b"\0.nv_fatbin\0.shstrtab\0"
    head = 64
    table = head + len(fat) + len(names)
    table += -table % 8

    def section(name, kind, offset, size):
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 8, 0)

    elf = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    )
    data = (elf + fat + names).ljust(table, b"\0")
    return (
        data
        + section(0, 0, 0, 0)
        + section(1, 1, head, len(fat))
        + section(12, 3, head + len(fat), len(names))
    )


def install(site: Path, name: str, library: bytes, *more: str):
    folder = site / name
    folder.mkdir(parents=True)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    files = more or ("ops.abi3.so",)
    for file in files:
        (folder / file).write_bytes(library)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in files))


@pytest.mark.parametrize(
    ("entry", "capability", "runs"),
    [
        ((CUBIN, 90, 0), (9, 0), True),
        ((CUBIN, 80, 0), (8, 9), True),  # a minor above that of the code
        ((CUBIN, 89, 0), (8, 6), False),  # never below
        ((CUBIN, 80, 0), (9, 0), False),  # never another major
        ((CUBIN, 90, EXACT), (9, 0), True),
        ((CUBIN, 120, EXACT), (12, 1), False),
        ((CUBIN, 100, FAMILY), (10, 3), True),
        ((CUBIN, 100, FAMILY), (12, 0), False),
        ((PTX, 80, 0), (12, 0), True),
        ((PTX, 120, 0), (9, 0), False),
        ((PTX, 90, EXACT), (12, 0), False),
    ],
)
def test_code_runs_where_cuda_says_it_does(tmp_path, entry, capability, runs):
    install(tmp_path, "my_kernels", fat_library(entry))
    found = look("kernels", {"capability": capability}, PYTHONPATH=str(tmp_path))
    told = {each.level for each in found if "my_kernels" in each.what + each.evidence}
    assert told == {CheckLevel.OK if runs else CheckLevel.ERROR}


def test_without_a_gpu_it_says_what_there_is_and_judges_nothing(tmp_path):
    install(tmp_path, "my_kernels", fat_library((CUBIN, 120, 0), (PTX, 120, 0)))
    found = look("kernels", PYTHONPATH=str(tmp_path), LD_LIBRARY_PATH="/nowhere")
    if not Path("/dev/nvidiactl").exists():
        mine = [each for each in found if "my_kernels" in each.evidence]
        assert [each.level for each in mine] == [CheckLevel.UNKNOWN]
        assert "compute_120, sm_120" in mine[0].evidence


@given(st.binary(max_size=200))
def test_a_file_that_is_no_library_is_passed_over(data):
    whole = fat_library((CUBIN, 90, 0))
    namespace: dict = {}
    exec(script_text("kernels").rsplit("\nmain()", 1)[0], namespace)
    for damaged in (data, whole[: len(data)], data + whole[len(data) :], whole[: -len(data) or None]):
        try:
            namespace["targets_in"](damaged)
        except (struct.error, ValueError):
            continue  # what read_library takes for "cannot be read"


def test_a_library_that_does_not_load_is_named(tmp_path):
    install(tmp_path, "flash_attn", b"\x7fELF no library at all")
    told = {"distributions": ["flash_attn"], "device": "cuda", "deadline_s": 20}
    (tmp_path / "torch.py").write_text("")
    found = look("loading", told, PYTHONPATH=str(tmp_path))
    assert levels(found, "kernel-loading") == {CheckLevel.ERROR}


def test_a_library_for_another_python_is_no_finding(tmp_path):
    mine = "_C.cpython-{}{}-x86_64-linux-gnu.so".format(*sys.version_info)
    library = b"\x7fELF no library at all"
    install(tmp_path, "flash_attn", library, mine, "_C.cpython-399-x86_64-linux-gnu.so")
    (tmp_path / "torch.py").write_text("")
    told = {"distributions": ["flash_attn"], "device": "cuda", "deadline_s": 20}
    found = look("loading", told, PYTHONPATH=str(tmp_path))
    errors = [each.what.split()[0] for each in found if each.level is CheckLevel.ERROR]
    assert errors == [mine]


# --- what they answer ------------------------------------------------------------------------------------


@given(st.text(max_size=300), st.booleans(), st.sampled_from([0, 1, None]))
def test_whatever_a_script_prints_is_read_without_a_fault(text, timed_out, code):
    done = Execution(code=code, stdout=text, stderr=text, timed_out=timed_out, seconds=0.0)
    found = read_findings(CHECKS[0], done)
    assert timed_out or code == 0 or found[-1].level is CheckLevel.UNKNOWN
