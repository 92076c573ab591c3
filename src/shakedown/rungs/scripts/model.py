"""Whether the model folder is whole: config, shards, headers, sizes, a tokenizer that fits the weights."""

import glob
import struct

ITEM_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "BF16": 16,
    "F16": 16,
    "I16": 16,
    "U16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "F4": 4,
}
HEADER_BYTES = 100 << 20
POINTER = b"version https://git-lfs"


def header_of(path):
    """The tensors a safetensors file says it holds, and where its data begins. Raises ValueError."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        if (head + file.read(16)).startswith(POINTER):
            raise ValueError("it is a Git LFS pointer, not the weights")
        if len(head) < 8:
            raise ValueError(f"it has {size} bytes")
        length = struct.unpack("<Q", head)[0]
        if length > min(HEADER_BYTES, size - 8):
            raise ValueError(f"its header says {length} bytes, the file has {size}")
        file.seek(8)
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise ValueError("its header is no JSON") from None
    header.pop("__metadata__", None)
    return header, 8 + length, size


def check_shard(path):
    """Tensor names of one shard. Raises ValueError with what is wrong."""
    header, begin, size = header_of(path)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if begin + end != size:
        raise ValueError(f"it holds {size} of {begin + end} bytes")
    for name, entry in header.items():
        count = 1
        for side in entry["shape"]:
            count *= side
        start, stop = entry["data_offsets"]
        if entry["dtype"] in ITEM_BITS and (stop - start) * 8 != count * ITEM_BITS[entry["dtype"]]:
            raise ValueError(f"tensor {name} has {stop - start} bytes for shape {entry['shape']}")
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


def shards(folder):
    """All tensor shapes, or None where a shard is missing or broken (said)."""
    index = os.path.join(folder, "model.safetensors.index.json")
    files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    promised = None
    if os.path.exists(index):
        with open(index) as file:
            promised = json.load(file)["weight_map"]
        files = [os.path.join(folder, name) for name in sorted(set(promised.values()))]
    if not files:
        other = glob.glob(os.path.join(folder, "*.gguf")) + glob.glob(os.path.join(folder, "*.bin"))
        if other:
            not_seen("model-shards", f"{os.path.basename(other[0])}: only safetensors are read")
        else:
            found(
                "model-shards",
                "error",
                "no weights in the model folder",
                folder,
                "the engine stops, or loads nothing",
                "copy the weights there",
            )
        return None
    tensors, broken = {}, []
    for path in files:
        try:
            tensors.update(check_shard(path))
        except FileNotFoundError:
            broken.append(f"{os.path.basename(path)} is missing")
        except (ValueError, KeyError, OSError) as error:
            broken.append(f"{os.path.basename(path)}: {error}")
    absent = sorted(set(promised or ()) - set(tensors))
    if broken or absent:
        told = "; ".join(broken[:4]) or f"{len(absent)} tensors of the index, {absent[0]} first"
        found(
            "model-shards",
            "error",
            f"{len(broken)} of {len(files)} shards are not whole"
            if broken
            else "tensors are missing from the shards",
            told,
            "loading fails, after the minutes of the shards before it",
            "copy the named files again",
        )
        return None
    looked(
        "model-shards",
        f"{len(files)} files, {len(tensors)} tensors, {size_words(sum(map(os.path.getsize, files)))}",
    )
    return tensors


def config_of(folder):
    try:
        with open(os.path.join(folder, "config.json")) as file:
            return json.load(file)
    except FileNotFoundError:
        found(
            "model-config",
            "error",
            "config.json is missing",
            folder,
            "no engine knows what the weights are",
            "copy it beside the weights",
        )
    except ValueError as error:
        found(
            "model-config",
            "error",
            "config.json is no JSON",
            str(error),
            "no engine can read it",
            "copy it again",
        )
    return None


def tokenizer(folder, config, tensors):
    """One with more ids than the embedding has rows crashes at the first such id."""
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        if not any(
            glob.glob(os.path.join(folder, name)) for name in ("tokenizer.model", "*.tiktoken", "vocab.json")
        ):
            found(
                "model-tokenizer",
                "error",
                "no tokenizer in the model folder",
                folder,
                "the engine stops at start",
                "copy the tokenizer files of this model",
            )
        else:
            not_seen("model-tokenizer", "only tokenizer.json is read")
        return
    try:
        with open(path) as file:
            told = json.load(file)
        model = told.get("model", {}).get("vocab", {})
        ids = list(model.values()) if isinstance(model, dict) else list(range(len(model)))
        highest = max(ids + [token["id"] for token in told.get("added_tokens", ())])
    except (ValueError, AttributeError, KeyError) as error:
        found(
            "model-tokenizer",
            "error",
            "tokenizer.json cannot be read",
            str(error),
            "the engine stops at start",
            "copy it again",
        )
        return
    rows = embedding_rows(config, tensors)
    if rows is None:
        not_seen("model-tokenizer", "no embedding was recognised among the tensors")
    elif highest >= rows:
        found(
            "model-tokenizer",
            "error",
            "the tokenizer does not fit the weights",
            f"its highest id is {highest}, the embedding has {rows} rows",
            "a crash, or wrong answers, at the first such token",
            "use the tokenizer of these weights",
        )
    elif rows > 1.5 * (highest + 1):
        found(
            "model-tokenizer",
            "warning",
            "the tokenizer is much smaller than the weights",
            f"its highest id is {highest}, the embedding has {rows} rows",
            "it may be of another model",
            "compare it with the one of these weights",
        )
    else:
        looked("model-tokenizer", f"highest id {highest}, {rows} embedding rows")


def embedding_rows(config, tensors):
    for name, shape in (tensors or {}).items():
        if name.endswith(("embed_tokens.weight", "word_embeddings.weight", "wte.weight")) and len(shape) == 2:
            return shape[0]
    return (config.get("text_config") or config).get("vocab_size")


def main():
    folder = PARAMS.get("model", "")
    if not os.path.isdir(folder):
        by_name(folder)
        return
    config = config_of(folder)
    tensors = shards(folder)
    if config is not None:
        tokenizer(folder, config, tensors)


def by_name(name):
    """A model named, not a folder: it must be in the cache where the hub may not or cannot be asked."""
    if (os.sep in name and name.startswith((".", "/", "~"))) or not name:
        found(
            "model-folder",
            "error",
            "the model folder does not exist",
            name or "no model was given",
            "the engine takes it for a name on a hub, and asks for it",
            "correct the path",
        )
        return
    home = os.path.expanduser(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    kept = glob.glob(os.path.join(hub, "models--" + name.replace("/", "--"), "snapshots", "*", "config.json"))
    offline = os.environ.get("HF_HUB_OFFLINE") == "1" or os.environ.get("TRANSFORMERS_OFFLINE") == "1"
    if kept:
        looked("model-cached", os.path.dirname(kept[0]))
    elif offline:
        found(
            "model-cached",
            "error",
            "the model is not in the cache, and offline is set",
            f"{name} in {hub}",
            "the engine stops at once",
            "unset HF_HUB_OFFLINE, or download it first",
        )
    else:
        hub_reachable(name)


def hub_reachable(name):
    import socket
    from urllib.parse import urlsplit

    try:
        from huggingface_hub.constants import ENDPOINT
    except ImportError:
        not_seen("hub", "huggingface_hub is not installed in this interpreter")
        return
    parts = urlsplit(os.environ.get("HF_ENDPOINT") or ENDPOINT)
    try:
        with socket.create_connection((parts.hostname, parts.port or 443), timeout=3):
            looked("hub", f"{name} is not in the cache, and the hub answers")
    except OSError as error:
        found(
            "hub",
            "error",
            "the model must be downloaded, and the hub cannot be reached",
            f"{parts.hostname}: {error}",
            "minutes of retries, then an error",
            "bring the model to the cache, or set a proxy",
        )


main()
