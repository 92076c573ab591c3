"""What is put beside engines on a GPU: how several share a host, ranks that stay away, corrupt drafters.

It launches nothing.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from math import prod
from pathlib import Path
from typing import Any

SLICE_GIB = 12  # what each server is shown of its GPU, so that a dozen share it without racing for memory

# Read by every Python of a launch (on PYTHONPATH). It prepares a small host for engines whose optional
# parts were left out, as a packager would: what is not installed is no default. NVLink multicast is off
# there, for no variable of the command may decide that.
HOST = """
import importlib.machinery, os, sys

for name in ("NCCL_NVLS_ENABLE", "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_ALLREDUCE_USE_SYMM_MEM"):
    os.environ.setdefault(name, "0")
for name in ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS"):
    os.environ.setdefault(name, "1")
AFTER = {}  # module: what is done once it is imported


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in AFTER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            plain, then = spec.loader.exec_module, AFTER[name]

            def run(module):
                plain(module)
                then(module)

            spec.loader.exec_module = run
        return spec


sys.meta_path.insert(0, Finder())


def share(torch):
    whole, context = SLICE_GIB << 30, 600 << 20

    def info(device=None):
        return max(0, whole - context - torch.cuda.memory_reserved(device)), whole

    torch.cuda.mem_get_info = info
    torch.accelerator.get_memory_info = info


def only_what_is_there(module):
    plain = module.ServerArgs._handle_missing_default_values

    def fill(self):
        if self.grammar_backend is None:
            self.grammar_backend = "none"
        if self.device in (None, "cuda"):
            self.attention_backend = self.attention_backend or "triton"
            self.sampling_backend = self.sampling_backend or "pytorch"
            self.cuda_graph_max_bs_decode = self.cuda_graph_max_bs_decode or 8
            self.disable_prefill_cuda_graph = True  # else a minute of compilation a launch
        plain(self)

    module.ServerArgs._handle_missing_default_values = fill


AFTER["torch"] = share
AFTER["sglang.srt.server_args"] = only_what_is_there
"""

# Rank 1 never comes to its first all-reduce where {} holds.
ABSENT = """
def stay_away(module):
    import time

    plain = module.GroupCoordinator.all_reduce

    def all_reduce(self, input_):
        if self.world_size > 1 and self.rank_in_group == 1 and ({}):
            time.sleep(100000)
        return plain(self, input_)

    module.GroupCoordinator.all_reduce = all_reduce


AFTER["sglang.srt.distributed.parallel_state"] = stay_away
"""
WITHOUT_P2P = ABSENT.format('os.environ.get("NCCL_P2P_DISABLE") == "1"')
IN_CUSTOM = ABSENT.format("self.ca_comm is not None and not self.ca_comm.disabled")


def write_host(folder: Path, plant: str = "", slice_gib: int = SLICE_GIB) -> Path:
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(HOST.replace("SLICE_GIB", str(slice_gib)) + plant)
    return folder


def hollow_model(folder: Path, to: Path) -> Path:
    """The same Llama at 55 GB, its weights all noughts in a file that takes no room on the disk: it loads as
    any file does that the machine has in memory."""
    copied(folder, to)
    config = json.loads((folder / "config.json").read_text())
    wide, inner, heads, groups, layers = 5120, 13824, 40, 8, 100
    config |= {"hidden_size": wide, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": 128}
    config |= {"num_attention_heads": heads, "num_key_value_heads": groups, "tie_word_embeddings": True}
    (to / "config.json").unlink()
    (to / "config.json").write_text(json.dumps(config, indent=1))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], wide], "model.norm.weight": [wide]}
    for layer in range(layers):
        start = f"model.layers.{layer}."
        for name, out, into in (
            *(("self_attn.q_proj", wide, wide), ("self_attn.o_proj", wide, wide)),
            *((f"self_attn.{each}_proj", groups * 128, wide) for each in "kv"),
            *(("mlp.gate_proj", inner, wide), ("mlp.up_proj", inner, wide), ("mlp.down_proj", wide, inner)),
        ):
            shapes[f"{start}{name}.weight"] = [out, into]
        shapes[f"{start}input_layernorm.weight"] = [wide]
        shapes[f"{start}post_attention_layernorm.weight"] = [wide]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with open(to / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return to


# A library with code for one chip that this one is not, as a package of kernels installs it.
KERNEL = '__global__ void k(int *p) { *p = 1; } extern "C" void go(int *p) { k<<<1, 1>>>(p); }'


def planted_library(folder: Path, chip: str = "120") -> Path:
    """A folder for PYTHONPATH. Raises CalledProcessError and OSError where nvcc cannot make it."""
    package, about = folder / "flash_planted", folder / "flash_planted-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "k.cu").write_text(KERNEL)
    words = ["nvcc", "-gencode", f"arch=compute_{chip},code=sm_{chip}", "-shared", "-Xcompiler", "-fPIC"]
    words += ["-o", str(package / "_C.so"), str(package / "k.cu")]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-planted\nVersion: 1.0\n")
    (about / "RECORD").write_text("flash_planted/_C.so,,\n")
    return folder


def read_tensors(file: Path) -> tuple[dict[str, Any], bytes]:
    """Header and body of a safetensors file."""
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_tensors(file: Path, tensors: dict[str, tuple[str, list[int], bytes]], metadata: Any) -> None:
    """`tensors`: name to dtype, shape and bytes."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    at = 0
    for name, (dtype, shape, body) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(body)]}
        at += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, body in tensors.values():
            out.write(body)


def copied(folder: Path, to: Path) -> Path:
    """The folder with links to its files; the weights' file is returned, not linked."""
    to.mkdir(parents=True)
    files = list(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise ValueError(f"{folder} has {len(files)} files of weights, and one is wanted")
    weights = files[0]
    for entry in folder.iterdir():
        if entry != weights and not entry.is_dir():
            (to / entry.name).symlink_to(entry.resolve())
    return weights


def cut_file(folder: Path, to: Path) -> Path:
    """A model or drafter whose only weight file was cut in the middle of its copy."""
    weights = copied(folder, to)
    shutil.copyfile(weights, to / weights.name)
    with open(to / weights.name, "r+b") as file:
        file.truncate(weights.stat().st_size // 2)
    return to


def narrow_fc(folder: Path, to: Path) -> Path:
    """A drafter whose `fc` takes two states in place of three."""
    weights = copied(folder, to)
    header, body = read_tensors(weights)
    if not any(name.endswith("fc.weight") for name in header):
        raise ValueError(f"{weights} has no fc.weight: no EAGLE-3 drafter")
    metadata = header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        dtype, shape, values = entry["dtype"], list(entry["shape"]), body[start:end]
        if name.endswith("fc.weight"):
            shape[1] = shape[1] * 2 // 3
            values = values[: len(values) * 2 // 3]
        tensors[name] = (dtype, shape, values)
    write_tensors(to / weights.name, tensors, metadata)
    return to


def more_heads(folder: Path, to: Path) -> Path:
    """The same Llama with one more group of attention heads, all of it noughts: it answers alike, and two
    ranks can share its heads (SmolLM2-135M has 9 and 3; this has 12 and 4)."""
    weights = copied(folder, to)
    config = json.loads((folder / "config.json").read_text())
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    width, more = config["hidden_size"] // heads, heads // groups
    config |= {"num_attention_heads": heads + more, "num_key_value_heads": groups + 1, "head_dim": width}
    (to / "config.json").unlink()
    (to / "config.json").write_text(json.dumps(config, indent=1))
    header, body = read_tensors(weights)
    metadata = header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        shape, values = list(entry["shape"]), body[start:end]
        size = len(values) // (shape[0] * (shape[1] if len(shape) > 1 else 1))
        added = {"q_proj": more, "k_proj": 1, "v_proj": 1}.get(name.split(".")[-2], 0) * width
        if added:
            values += bytes(added * shape[1] * size)
            shape[0] += added
        elif ".o_proj." in name:
            row, empty = shape[1] * size, bytes(more * width * size)
            values = b"".join(values[at : at + row] + empty for at in range(0, len(values), row))
            shape[1] += more * width
        tensors[name] = (entry["dtype"], shape, values)
    write_tensors(to / weights.name, tensors, metadata)
    return to
