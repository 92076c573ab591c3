"""States from an engine's own prefill: requests into the engine's process, one file a request out of it.

It trusts no file: its tokens must be those that were asked for.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open

from shakedown.drafter.capture import Request
from shakedown.drafter.engine_process import EngineProcess, installed_version
from shakedown.drafter.manifest import Backend
from shakedown.drafter.saying import Say
from shakedown.drafter.shards import Document
from shakedown.drafter.target import Target
from shakedown.errors import DataProblem, EnvironmentProblem, UsageError

SPOOL = ".spool-"
SPOOL_BYTES = 4 * 2**30  # of states that lie between engine and shards
CHUNKS_IN_FLIGHT = 2  # one is computed while one is read
CHUNK_S = 5.0  # what a chunk shall take: a batch that ends early costs little, and a kill loses little
FIRST_TOKENS = 8192
WINDOW_TOKENS = 2**22
COMPILING_S = 2400.0  # what engines compile and tune before they are ready, and with the first chunk
SLOWEST_DISK = 100e6  # bytes a second
SHORTEST_PATIENCE_S = 300.0  # a shape that is new to the engine is compiled on its way, in a minute or two
LOCK_LOOK_S = 0.005
PATIENCE = 20  # times what a chunk should take by the pace so far


class EngineCapture:
    """What vLLM and SGLang have in common; a subclass says what to start and what its files hold.

    `options` go to the engine as they are, as {"tensor_parallel_size": 8}. `folder` is where states pass
    through on their way into shards.
    """

    module = ""
    script = ""
    compiling_s = COMPILING_S
    shortest_patience_s = SHORTEST_PATIENCE_S

    def __init__(
        self,
        target: Target,
        *,
        python: Path,
        folder: Path,
        longest: int,
        dtype: str = "auto",
        options: Mapping[str, Any] | None = None,
        say: Say = lambda text: None,
    ) -> None:
        self.target = target
        self.backend = Backend(name=self.module, version=installed_version(python, self.module))
        self.refuse_version()
        token_bytes = (len(target.aux_inputs_of) + 1) * target.hidden_size * 2
        self._most_tokens = max(SPOOL_BYTES // CHUNKS_IN_FLIGHT // token_bytes, longest)
        self._chunk_tokens = FIRST_TOKENS
        self._tokens_per_s = 0.0
        self.first_tokens, self.window_tokens = FIRST_TOKENS, WINDOW_TOKENS
        self._python = python
        self._folder = folder
        self._say = say
        self._settings = {
            "model": str(target.path),
            "dtype": dtype,
            "longest": longest,
            "context": max(target.max_positions, longest + 8),  # SGLang wants room beside a full sample
            "options": dict(options or {}),
            "layers": self.layers(),
        }
        self._stack = ExitStack()

    def refuse_version(self) -> None:
        """Raises UsageError where the installed engine cannot give the states."""

    def layers(self) -> list[int]:
        """The engine's numbers for what is captured."""
        raise NotImplementedError

    def states_of(self, file: Any, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """aux [T, 3·H] and last [R, H] out of a request's open file, bfloat16."""
        raise NotImplementedError

    def __enter__(self) -> EngineCapture:
        with ExitStack() as stack:
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(f"{SPOOL}*"):  # by a kill: the folder is ours alone now
                shutil.rmtree(left)
            spool = tempfile.TemporaryDirectory(prefix=SPOOL, dir=self._folder)
            self._spool = Path(stack.enter_context(spool))
            settings = {**self._settings, "spool": str(self._spool)}
            process = EngineProcess(
                self._python,
                self.script,
                settings,
                name=self.module,
                say=self._say,
                loading_s=self.compiling_s + weight_bytes(self.target) / SLOWEST_DISK,
            )
            self._engine = stack.enter_context(process)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, value, trace)

    def capture(self, requests: Sequence[Request]) -> Iterator[Document]:
        waiting: list[Sequence[Request]] = []
        self._answered_s = time.monotonic()
        for number, chunk in enumerate(self._chunks(requests)):
            self._ask(chunk, number)
            waiting.append(chunk)
            if len(waiting) == CHUNKS_IN_FLIGHT:
                yield from self._answered(waiting.pop(0))
        for chunk in waiting:
            yield from self._answered(chunk)

    def _chunks(self, requests: Sequence[Request]) -> Iterator[Sequence[Request]]:
        chunk: list[Request] = []
        tokens = 0
        for request in requests:
            if chunk and tokens + request.length > self._chunk_tokens:
                yield chunk
                chunk, tokens = [], 0
            chunk.append(request)
            tokens += request.length
        if chunk:
            yield chunk

    def _ask(self, chunk: Sequence[Request], number: int) -> None:
        path = self._spool / f"ask-{number % (CHUNKS_IN_FLIGHT + 1)}.json"
        path.write_text(json.dumps([request.tokens.tolist() for request in chunk]))
        self._engine.send(str(path))

    def _answered(self, chunk: Sequence[Request]) -> Iterator[Document]:
        tokens = sum(request.length for request in chunk)
        patience_s = self._patience_s(tokens)
        files = self._engine.receive(f"computing {len(chunk)} samples", patience_s=patience_s)["files"]
        self._pace(tokens)
        if len(files) != len(chunk):
            raise DataProblem(f"{self.module} gave {len(files)} files for {len(chunk)} samples")
        for request, name in zip(chunk, files, strict=True):
            path = Path(name)
            yield self._document(path, request)
            path.unlink()
            path.with_name(path.name + ".lock").unlink(missing_ok=True)

    def _patience_s(self, tokens: int) -> float:
        if not self._tokens_per_s:
            return self.compiling_s
        return max(self.shortest_patience_s, PATIENCE * tokens / self._tokens_per_s)

    def _pace(self, tokens: int) -> None:
        """Makes the chunks to come as large as takes CHUNK_S."""
        now_s = time.monotonic()
        rate, self._answered_s = tokens / (now_s - self._answered_s), now_s
        self._tokens_per_s = rate
        self._chunk_tokens = min(max(int(rate * CHUNK_S), FIRST_TOKENS), self._most_tokens)

    def _document(self, path: Path, request: Request) -> Document:
        wait_until_written(path, self.shortest_patience_s)
        try:
            with safe_open(path, framework="pt") as file:
                tokens = file.get_tensor("token_ids")
                if tokens.tolist() != request.tokens.tolist():
                    raise DataProblem(
                        f"{request.place}: {self.module} gave the states of {len(tokens)} other tokens"
                        f" than the {request.length} that were asked for"
                    )
                aux, last = self.states_of(file, request)
        except (OSError, SafetensorError) as problem:
            raise DataProblem(
                f"{request.place}: {self.module}'s file {path} cannot be read: {problem}"
            ) from None
        return Document(
            tokens=request.tokens,
            mask=request.mask,
            aux=aux,
            last=last,
            last_rows=request.rows,
            sample=request.sample,
        )


def weight_bytes(target: Target) -> int:
    return sum((target.path / name).stat().st_size for name in set(target.weights.files.values()))


def wait_until_written(path: Path, patience_s: float) -> None:
    """Until the writer gives up its lock, where it keeps one. Raises EnvironmentProblem where it does not."""
    until_s = time.monotonic() + patience_s
    try:
        with path.with_name(path.name + ".lock").open() as lock:
            while not shared(lock):
                if time.monotonic() > until_s:
                    raise EnvironmentProblem(
                        f"the engine has not written {path} to its end within {patience_s:.0f} s",
                        "it hangs, or the disk does",
                    )
                time.sleep(LOCK_LOOK_S)
    except FileNotFoundError:
        return


def shared(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class VllmCapture(EngineCapture):
    """vLLM's `extract_hidden_states`. Its last state is the last layer's output: the norm is applied here."""

    module = "vllm"
    script = "vllm_states.py"

    def layers(self) -> list[int]:
        return [*self.target.aux_inputs_of, self.target.layers]

    def states_of(self, file: Any, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        states: torch.Tensor = file.get_tensor("hidden_states")  # [T, slots, H]
        aux = states[:, :-1].flatten(1).bfloat16()
        return aux.contiguous(), self._normed(states[request.rows, -1])

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        exact = states.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.target.rms_eps)
        return (exact * scale * self._norm_weight).bfloat16()

    @cached_property
    def _norm_weight(self) -> torch.Tensor:
        return self.target.final_norm().float()


class SglangCapture(EngineCapture):
    """SGLang's capture of aux states without a drafter, read by a hook of ours on its logits processor."""

    module = "sglang"
    script = "sglang_states.py"
    first_version = (0, 5, 23)

    def refuse_version(self) -> None:
        version = tuple(int(part) for part in self.backend.version.split(".")[:3] if part.isdigit())
        if version < self.first_version:
            raise UsageError(
                f"SGLang {self.backend.version} gives only its last hidden state, and no aux states without a"
                " drafter; capture needs 0.5.23 (--enable-return-aux-hidden-states)",
                "capture with another SGLang, or with --backend transformers or vllm",
            )

    def layers(self) -> list[int]:
        """SGLang's number k is the output of layer k; of DeepSeek's models too, as the first one is 1."""
        return [layer - 1 for layer in self.target.aux_inputs_of]

    def states_of(self, file: Any, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        return file.get_tensor("aux").bfloat16(), file.get_tensor("last")[request.rows].bfloat16()
