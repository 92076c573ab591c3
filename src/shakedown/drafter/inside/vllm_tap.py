"""Runs in vLLM's processes, as a plug-in: writes the aux states that the drafter is handed to files.

It changes nothing that it sees, and stops by itself after so many tokens.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import torch

FOLDER, TOKENS = "SHAKEDOWN_TAP", "SHAKEDOWN_TAP_TOKENS"


def register() -> None:
    """Called by vLLM in every process of it; only the first rank's runner of the target writes."""
    if FOLDER not in os.environ:
        return
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    plain = GPUModelRunner.propose_draft_token_ids
    if getattr(plain, "is_tap", False):
        return
    tap = Tap(Path(os.environ[FOLDER]), int(os.environ.get(TOKENS, "16384")))
    signature = inspect.signature(plain)

    def propose_draft_token_ids(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature.bind(self, *arguments, **named).arguments
        tap.write(self, given["scheduler_output"], given.get("aux_hidden_states"))
        return plain(self, *arguments, **named)

    propose_draft_token_ids.is_tap = True  # type: ignore[attr-defined]
    GPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


class Tap:
    def __init__(self, folder: Path, tokens: int) -> None:
        self._folder, self._left = folder, tokens
        self._step = 0

    def write(self, runner: Any, scheduled: Any, aux: list[torch.Tensor] | None) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank

        count = scheduled.total_num_scheduled_tokens
        if aux is None or self._left < count or get_tensor_model_parallel_rank() != 0:
            return
        self._left -= count
        names = list(runner.input_batch.req_ids)
        positions = (
            runner._get_positions(count) if hasattr(runner, "_get_positions") else runner.positions[:count]
        )
        found = {
            "names": names,
            "counts": [int(scheduled.num_scheduled_tokens[name]) for name in names],
            "tokens": runner.input_ids.gpu[:count].cpu().clone(),
            "positions": torch.as_tensor(positions).cpu().clone(),
            "aux": torch.stack([layer[:count].cpu() for layer in aux]),
        }
        self._step += 1
        path = self._folder / f"step-{self._step:06d}-{os.getpid()}.pt"
        torch.save(found, f"{path}.part")
        os.rename(f"{path}.part", path)
