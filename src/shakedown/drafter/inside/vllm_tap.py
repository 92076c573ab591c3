"""Runs in vLLM's processes, as a plug-in: writes the aux states that the drafter is handed to files.

It changes nothing that it sees, and stops by itself after so many tokens.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch

FOLDER, TOKENS = "SHAKEDOWN_TAP", "SHAKEDOWN_TAP_TOKENS"


def register() -> None:
    """Called by vLLM in every process of it; only the first rank's runner of the target writes.

    Which of vLLM's two runners runs depends on version, model and flags: both are tapped.
    """
    if FOLDER not in os.environ:
        return
    tap = Tap(Path(os.environ[FOLDER]), int(os.environ.get(TOKENS, "32768")))
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    look_before(GPUModelRunner, "propose_draft_token_ids", tap.look_at_v1)
    try:
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2
    except ImportError:  # a version before it, or one whose kernels are not here
        return
    look_before(V2, "sample_tokens", tap.look_at_v2)


def look_before(owner: Any, name: str, look: Callable[..., None]) -> None:
    """`look(runner, given)` before each call, with the arguments by name."""
    plain = getattr(owner, name)
    if getattr(plain, "is_tap", False):
        return
    signature = inspect.signature(plain)

    @wraps(plain)
    def looked_at(self: Any, *arguments: Any, **named: Any) -> Any:
        look(self, signature.bind(self, *arguments, **named).arguments)
        return plain(self, *arguments, **named)

    looked_at.is_tap = True  # type: ignore[attr-defined]
    setattr(owner, name, looked_at)


class Tap:
    def __init__(self, folder: Path, tokens: int) -> None:
        self._folder, self._left = folder, tokens
        self._step = 0

    def look_at_v1(self, runner: Any, given: dict[str, Any]) -> None:
        scheduled = given["scheduler_output"]
        count = scheduled.total_num_scheduled_tokens
        names = list(runner.input_batch.req_ids)
        positions = (
            runner._get_positions(count) if hasattr(runner, "_get_positions") else runner.positions[:count]
        )
        counts = [int(scheduled.num_scheduled_tokens[name]) for name in names]
        self.write(names, counts, runner.input_ids.gpu, positions, given.get("aux_hidden_states"))

    def look_at_v2(self, runner: Any, given: dict[str, Any]) -> None:
        """Between the target's forward and the sampling, after which the drafter takes the states over."""
        state = runner.execute_model_state
        if state is None:
            return
        batch = state.input_batch
        counts = [int(number) for number in batch.num_scheduled_tokens]
        self.write(list(batch.req_ids), counts, batch.input_ids, batch.positions, state.aux_hidden_states)

    def write(
        self,
        names: list[str],
        counts: Sequence[int],
        tokens: torch.Tensor,
        positions: torch.Tensor,
        aux: list[torch.Tensor] | None,
    ) -> None:
        """Of a step's buffers what is no padding; a warm-up of vLLM's own has names that begin with _."""
        from vllm.distributed import get_tensor_model_parallel_rank

        count = sum(counts)
        own = any(name.startswith("_") for name in names)
        if not aux or own or self._left < count or get_tensor_model_parallel_rank() != 0:
            return
        self._left -= count
        found = {
            "names": names,
            "counts": list(counts),
            "tokens": tokens[:count].cpu().clone(),
            "positions": torch.as_tensor(positions)[..., :count].cpu().clone(),
            "aux": torch.stack([layer[:count].cpu() for layer in aux]),
        }
        self._step += 1
        path = self._folder / f"step-{self._step:06d}-{os.getpid()}.pt"
        torch.save(found, f"{path}.part")
        os.rename(f"{path}.part", path)
