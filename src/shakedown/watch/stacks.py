"""Reads Python stacks: who waits for whom, who computes, who spins, and what has not been seen before.

It never decides; a stack alone misleads both ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import dropwhile, islice

from shakedown.core import Engine, Frame, Phase, StackDump

REMEMBER_S = 60.0
MEANINGFUL = 4  # frames of a fingerprint

# Plumbing in which any wait ends; the frame above it says what is waited for.
_PLUMBING = (
    "threading.py", "selectors.py", "queue.py", "socket.py", "ssl.py", "contextlib.py", "subprocess.py",
    "multiprocessing/", "concurrent/", "asyncio/", "uvloop/", "zmq/", "<frozen", "<string>", "runpy.py",
    "tracing/otel.py", "c10d_logger.py", "utils/_contextlib.py",
)  # fmt: skip
_TRACKERS = ("multiprocessing/resource_tracker.py", "multiprocessing/forkserver.py", "compile_worker/")
# A front end's event loop and a parent that joins wait for others by their nature.
_IDLE = (
    "serve (uvicorn/server.py", "serve_forever (socketserver.py", "run_forever (asyncio/",
    "Runner.run (asyncio/", "wait (subprocess.py", "join (multiprocessing/process.py",
    "poll (multiprocessing/popen_",
)  # fmt: skip
# One call in here may keep a core busy for half an hour without a sign. What is compiled in these packages
# runs under their frames, too: whoever waits for the GPU there does not compile.
_COMPILES = (
    "torch/_inductor/", "torch/_dynamo/", "torch/_functorch/", "torch/utils/cpp_extension.py",
    "triton/compiler/", "triton/backends/", "flashinfer/jit/", "tilelang/", "cutlass/",
)  # fmt: skip
# And in here the GPU does the work, and waiting for it is no sign of a hang.
_TUNES = (
    "autotun", "do_bench", "deep_gemm", "repack", "quantize (", "quantize_weight", "quantize_per_",
)  # fmt: skip
_SPINS = (
    "sched_yield", "spin", "ncclGroup", "ncclAll", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv",
    "ncclCommInit", "ncclCommWait", "nccl", "gloo::", "StreamSynchronize", "EventSynchronize",
    "CtxSynchronize", "DeviceSynchronize", "cuEventQuery", "cudaEventQuery", "hipStreamSynchronize",
    "sem_trywait", "pthread_mutex_trylock", "PyThread_acquire_lock", "busy_wait", "shm_broadcast.py",
    "barrier",
    "clock_gettime", "[vdso]",  # who is there in every other look polls, whatever it is that it waits for
)  # fmt: skip
# In here a process asks again and again for a file lock (flock) that another one holds. Not torch's
# FileBaton: there the file itself is the lock, and stays when its owner dies.
_FILE_LOCKS = ("filelock/_api.py", "filelock/_unix.py", "tvm_ffi/utils/lockfile.py")
LOCK_FRAMES = 3
# In here a rank waits for the others, or for the GPU that does.
_MEETS = ("torch/distributed/", "synchronize (torch/")
_DRIVER = ("libcuda.so", "libamdhip64.so", "libhsa-runtime64.so")
# What a wait calls in each of its turns; the frame that called it says whose wait it is.
_TURNS = ("nanosleep", "usleep", "ioctl", "poll (")
NATIVE_SHOWN = 4
LEAF_FRAMES = 6  # of a native stack: below them the wait is only a caller


def main_frames(dump: StackDump) -> tuple[Frame, ...]:
    """Frames of the main thread, innermost first."""
    for thread in dump.threads:
        if thread.name == "MainThread":
            return thread.frames
    return dump.threads[0].frames if dump.threads else ()


def awake_threads(dump: StackDump) -> dict[str, tuple[Frame, ...]]:
    """The threads that run or want to, by name; of several with one name the last."""
    return {thread.name: thread.frames for thread in dump.threads if thread.active and thread.frames}


def short_file(file: str) -> str:
    """A path from its package on, so that two machines agree."""
    for root in ("site-packages/", "dist-packages/"):
        if root in file:
            return file.rsplit(root, 1)[1]
    if file.startswith("/"):
        parts = file.split("/")
        is_library = len(parts) > 2 and parts[-2].startswith("python3")
        return "/".join(parts[-1:] if is_library else parts[-2:])
    return file


def show(frame: Frame) -> str:
    return f"{frame.function} ({short_file(frame.file)}:{frame.line})"


def leaf(native: Iterable[Frame]) -> str:
    """Where a native stack ends, from inside out; the driver's own functions are addresses."""
    spelled = (f"{f.function} ({short_file(f.file)})" for f in islice(native, NATIVE_SHOWN))
    return " < ".join(spelled)


def places(frames: Iterable[Frame]) -> tuple[str, ...]:
    """Each frame as "function (file", the form in which engine tables name frames."""
    return tuple(f"{frame.function} ({frame.file}" for frame in frames)


def any_in(frames: Iterable[Frame], fragments: Iterable[str]) -> bool:
    """Whether a fragment of "function (file" occurs in one of the frames."""
    spelled = places(frames)
    return any(fragment in place for fragment in fragments for place in spelled)


def meaningful(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The innermost frames that say what is being done, without the plumbing of waiting."""
    told = tuple(f for f in frames if not any(part in short_file(f.file) for part in _PLUMBING))
    return (told or frames)[:MEANINGFUL]


def fingerprint(frames: tuple[Frame, ...]) -> str:
    """Where a process stands, without line numbers: equal between runs and near versions."""
    return " < ".join(f"{f.function} ({short_file(f.file)})" for f in meaningful(frames))


def is_tracker(frames: tuple[Frame, ...]) -> bool:
    return any_in(frames, _TRACKERS)


def waits_for_other(frames: tuple[Frame, ...], engine: Engine) -> bool:
    """Whether a process is in a frame in which it waits for another process of its own launch."""
    return any_in(frames, engine.waits_for_child) or any_in(frames[:3], _IDLE)


def waits_for_file_lock(frames: tuple[Frame, ...]) -> bool:
    return any_in(frames[:LOCK_FRAMES], _FILE_LOCKS)


def packages(frames: tuple[Frame, ...]) -> tuple[str, ...]:
    """The packages whose code is under way, innermost first, without the code that does the locking."""
    files = [short_file(frame.file) for frame in frames if not any_in((frame,), _FILE_LOCKS)]
    return tuple(dict.fromkeys(file.partition("/")[0] for file in files if "/" in file))


def meets_ranks(frames: tuple[Frame, ...]) -> bool:
    """Whether a rank is where all ranks must come: of several, the one that is not there keeps the others."""
    return any_in(frames, _MEETS)


def idles(frames: tuple[Frame, ...], engine: Engine) -> bool:
    """Whether a process polls for requests and has none: its stacks change for ever, and it moves nothing."""
    return any_in(frames, engine.event_loops) and not any_in(frames, engine.loop_work)


def compiles(frames: tuple[Frame, ...], engine: Engine) -> bool:
    """Whether a process is where compilers and first runs take minutes without a sign."""
    long_frames = [fragment for fragment, phase in engine.frame_phases if phase is Phase.COMPILE]
    return any_in(frames, (*_COMPILES, *long_frames))


def tunes(frames: tuple[Frame, ...]) -> bool:
    """Whether a process has the GPU do what is known to take minutes without a sign."""
    return any_in(frames, _TUNES)


def spins(frames: tuple[Frame, ...]) -> bool:
    """Whether the native leaf is a known wait that keeps a core busy, or the driver waiting for the GPU."""
    return any_in(frames[:LEAF_FRAMES], _SPINS) or is_in_driver(frames)


def is_in_driver(frames: tuple[Frame, ...]) -> bool:
    """Whether the native leaf is the GPU's driver: behind an endless kernel a launch never returns from it.

    Its own functions have no names. What it compiles stands in a library of its own
    (libnvidia-ptxjitcompiler).
    """
    asking = tuple(dropwhile(lambda frame: any_in((frame,), _TURNS), frames))
    return bool(asking) and asking[0].file.startswith(_DRIVER)


def phase_of(spelled: tuple[str, ...], engine: Engine) -> Phase | None:
    """Where a stack or a traceback stands: the first entry of the table that occurs in its places."""
    for fragment, phase in engine.frame_phases:
        if any(fragment in place for place in spelled):
            return phase
    return None


class StackMemory:
    """The places each thread has been seen in lately."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], dict[tuple[Frame, ...], float]] = {}

    def is_new(self, pid: int, thread: str, frames: tuple[Frame, ...], at_s: float) -> bool:
        """Whether a thread is where it was not in the last minute. The first look is no movement.

        A place stays known while it is looked at again, so a loop over a few lines soon has no new one.
        """
        seen = self._seen.setdefault((pid, thread), {})
        known = bool(seen)
        new = frames not in seen
        seen[frames] = at_s
        return known and new

    def forget(self, at_s: float) -> None:
        """Drops what is older than a minute; called when something else moved."""
        for seen in self._seen.values():
            for frames in [f for f, when in seen.items() if at_s - when > REMEMBER_S]:
                del seen[frames]
