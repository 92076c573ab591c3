"""What must be broken before or during a launch for a real fault to show, each as one small function.

A setup takes the stage of one row, changes it, and takes back what it did when the row is over. It touches
copies only, signals only processes that the run's own folder names, and raises `NotMade` where this machine
cannot make the fault.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shakedown.host import procfs
from shakedown.host.state import read_state

WEIGHTS = "model.safetensors"
LOADING = r"Starting to load model"
ANSWERED = r'"(?:GET /health|POST /v1/\S+) HTTP/[\d.]+" 200'
WORKER, ENGINE_CORE = "VLLM::Worker", "VLLM::EngineCor"
LOOK_S = 0.02
DETACH = 2  # MNT_DETACH: whoever still hangs in it is left to the kernel


class NotMade(Exception):
    """This machine cannot make the fault, and why."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """One row's surroundings. Setups change `model`, `env`, `places` and `around` (before our command)."""

    work: Path
    model: Path
    port: int
    cache: Path
    runs: Path  # where the run's folder will appear
    env: dict[str, str]
    places: dict[str, str] = field(default_factory=dict)  # more {names} for the row's command
    around: tuple[str, ...] = ()
    unread_bytes: int | None = None  # our program's own messages go to a pipe so small, which nobody reads
    moment: str = ""  # the line at which a signal is due
    struck: list[str] = field(default_factory=list)  # which signals were sent


Setup = Callable[[Stage], AbstractContextManager[None]]
SETUPS: dict[str, Setup] = {}


def setup(make: Callable[[Stage], Iterator[None]]) -> Callable[[Stage], Iterator[None]]:
    SETUPS[make.__name__] = contextmanager(make)
    return make


# --- the model's files -----------------------------------------------------------------------------------


def copy_of_model(stage: Stage, name: str, *, without: str = "") -> Path:
    """Another folder of the same files, linked where possible, for one of them to be broken."""
    folder = stage.work / name
    folder.mkdir()
    for path in stage.model.iterdir():
        if path.is_file() and path.name != without and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    stage.model = folder
    return folder


@setup
def missing_weights(stage: Stage) -> Iterator[None]:
    copy_of_model(stage, "no-weights", without=WEIGHTS)
    yield


@setup
def truncated_weights(stage: Stage) -> Iterator[None]:
    whole = stage.model / WEIGHTS
    broken = copy_of_model(stage, "truncated", without=WEIGHTS) / WEIGHTS
    with whole.open("rb") as source, broken.open("wb") as target:
        target.write(source.read(100_000_000))
    yield


@setup
def zeroed_weights(stage: Stage) -> Iterator[None]:
    """20 MB of tensor data in the middle: loads, and answers nonsense."""
    whole = stage.model / WEIGHTS
    broken = copy_of_model(stage, "zeroed", without=WEIGHTS) / WEIGHTS
    shutil.copyfile(whole, broken)
    with broken.open("r+b") as file:
        file.seek(broken.stat().st_size // 2)
        file.write(bytes(20_000_000))
    yield


@setup
def fifo_weights(stage: Stage) -> Iterator[None]:
    os.mkfifo(copy_of_model(stage, "fifo-weights", without=WEIGHTS) / WEIGHTS)
    yield


@setup
def fifo_tokenizer(stage: Stage) -> Iterator[None]:
    os.mkfifo(copy_of_model(stage, "fifo-tokenizer", without="tokenizer.json") / "tokenizer.json")
    yield


@setup
def rotated_tokenizer(stage: Stage) -> Iterator[None]:
    """Every word has its neighbour's number; special tokens keep theirs."""
    tokenizer = json.loads((stage.model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    words = [word for word in sorted(vocabulary, key=vocabulary.get) if vocabulary[word] not in special]
    numbers = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, numbers[1:] + numbers[:1], strict=True))
    broken = copy_of_model(stage, "rotated", without="tokenizer.json") / "tokenizer.json"
    broken.write_text(json.dumps(tokenizer, ensure_ascii=False))
    yield


@setup
def random_eagle3(stage: Stage) -> Iterator[None]:
    """An EAGLE-3 drafter that fits the model and has learnt nothing: {eagle3}."""
    target = json.loads((stage.model / "config.json").read_text())
    hidden, inner, head = target["hidden_size"], target["intermediate_size"], target["head_dim"]
    heads, kv_heads = target["num_attention_heads"], target["num_key_value_heads"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv_heads * head, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv_heads * head, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (target["vocab_size"], hidden),
    }
    folder = stage.work / "eagle3"
    folder.mkdir()
    config = target | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": target["vocab_size"],
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_random_weights(folder / WEIGHTS, shapes)
    stage.places["eagle3"] = str(folder)
    yield


def write_random_weights(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of bfloat16: vectors are ones, matrices small normal noise."""
    chance = np.random.default_rng(1)
    header: dict[str, dict[str, object]] = {}
    at = 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for shape in shapes.values():
            noise = chance.normal(0, 0.02, shape) if len(shape) > 1 else np.ones(shape)
            upper_half = noise.astype("<f4").view("<u4") >> 16
            file.write(upper_half.astype("<u2").tobytes())


# --- disks, memory, limits -------------------------------------------------------------------------------


@contextmanager
def odd_disk(stage: Stage, *options: str) -> Iterator[None]:
    """The model seen through a file system of our own."""
    source = stage.work / "whole-model"
    shutil.copytree(stage.model, source)
    place = stage.work / "odd-disk"
    place.mkdir()
    script = Path(__file__).with_name("odd_disk.py")
    argv = [sys.executable, str(script), str(source), str(place), *options]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as disk:
        try:
            assert disk.stdout is not None
            assert disk.stderr is not None
            if disk.stdout.readline().strip() != "mounted":
                raise NotMade(f"no FUSE here: {disk.stderr.read().strip().splitlines()[-1]}")
            stage.model = place
            yield
        finally:
            disk.kill()  # first: the kernel then refuses what hangs
            ctypes.CDLL(None).umount2(str(place).encode(), DETACH)


@setup
def dead_disk(stage: Stage) -> Iterator[None]:
    with odd_disk(stage, "--silent-after", "100000000"):
        yield


@setup
def slow_disk(stage: Stage) -> Iterator[None]:
    with odd_disk(stage, "--bytes-per-s", "4000000"):
        yield


def in_own_mounts(stage: Stage, place: Path, size: str) -> None:
    """Our program and its launch see a small memory file system at `place`; nobody else does."""
    place.mkdir(exist_ok=True)
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    tried = subprocess.run(["unshare", "-m", *mounting], capture_output=True, text=True)
    if tried.returncode != 0:
        raise NotMade(f"no mount namespace here: {tried.stderr.strip()}")
    stage.around = ("unshare", "-m", "sh", "-c", f'{" ".join(mounting)} && exec "$@"', "sh")


@setup
def small_shared_memory(stage: Stage) -> Iterator[None]:
    in_own_mounts(stage, Path("/dev/shm"), "64k")
    yield


@setup
def full_cache(stage: Stage) -> Iterator[None]:
    in_own_mounts(stage, stage.cache, "1m")
    yield


@setup
def address_space_of_6_gb(stage: Stage) -> Iterator[None]:
    stage.around = ("sh", "-c", 'ulimit -v 6000000 && exec "$@"', "sh")
    yield


# --- ports and pipes -------------------------------------------------------------------------------------

HOLD = """
import socket, sys
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@setup
def held_port(stage: Stage) -> Iterator[None]:
    argv = [sys.executable, "-c", HOLD, str(stage.port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        stage.places["holder"] = str(holder.pid)
        yield
        holder.stdin.close()


@setup
def unread_pipe(stage: Stage) -> Iterator[None]:
    stage.unread_bytes = 4096
    yield


# --- signals to one process of our own run ---------------------------------------------------------------


@contextmanager
def striking(stage: Stage, name: str, number: signal.Signals, *, at: str) -> Iterator[None]:
    """Sends the signal to the run's process of that name once a line of its log matches `at`."""
    stage.moment = f"{at!r}"
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            for log in stage.runs.glob("*/launch.log"):
                if re.search(at, log.read_text(errors="replace")) and strike(log.parent, name, number):
                    stage.struck.append(f"{number.name} to {name}")
                    return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def strike(run: Path, name: str, number: signal.Signals) -> bool:
    """Signals a process that the run's own supervisor has written down as the run's."""
    state = read_state(run)
    for pid, ticks in state.owned if state else ():
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            stat = procfs.read_stat(pid)
            if stat is not None and (stat.comm, stat.started_ticks) == (name, ticks):
                signal.pidfd_send_signal(handle, number)
                return True
        finally:
            os.close(handle)
    return False


@setup
def stop_worker_loading(stage: Stage) -> Iterator[None]:
    with striking(stage, WORKER, signal.SIGSTOP, at=LOADING):
        yield


@setup
def kill_worker_loading(stage: Stage) -> Iterator[None]:
    with striking(stage, WORKER, signal.SIGKILL, at=LOADING):
        yield


@setup
def stop_worker_ready(stage: Stage) -> Iterator[None]:
    with striking(stage, WORKER, signal.SIGSTOP, at=ANSWERED):
        yield


@setup
def kill_engine_core_ready(stage: Stage) -> Iterator[None]:
    with striking(stage, ENGINE_CORE, signal.SIGKILL, at=ANSWERED):
        yield
