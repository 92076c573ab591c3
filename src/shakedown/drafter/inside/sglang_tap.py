"""Runs in SGLang's scheduler, as a plug-in: writes the aux states that the drafter is handed to files.

It changes nothing that it sees, stops by itself after so many tokens, and gives up where it does not know
what it sees. It knows 0.5.14, whose EAGLE worker is the same with the overlapping scheduler and without.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FOLDER, TOKENS = "SHAKEDOWN_TAP", "SHAKEDOWN_TAP_TOKENS"


def register() -> None:
    """Called by SGLang in every process of it; only the one that makes the worker is watched."""
    if FOLDER not in os.environ:
        return
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    plain = SpeculativeAlgorithm.create_worker
    if getattr(plain, "is_tap", False):
        return

    def create_worker(self: Any, *arguments: Any, **named: Any) -> Any:
        found = plain(self, *arguments, **named)
        if self.is_eagle3():
            watch(Tap(Path(os.environ[FOLDER]), int(os.environ.get(TOKENS, "32768"))))
        return found

    create_worker.is_tap = True  # type: ignore[attr-defined]
    SpeculativeAlgorithm.create_worker = create_worker


def watch(tap: Tap) -> None:
    """Both calls hand states over outside of any CUDA graph, before the drafter turns the tokens by one."""
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    prefill, decode = EagleDraftWorker._draft_extend_for_prefill, EagleDraftWorker._draft_extend_for_decode

    def draft_extend_for_prefill(self: Any, batch: Any, states: Any, *rest: Any, **named: Any) -> Any:
        tap.prefilled(self, batch, states)
        return prefill(self, batch, states, *rest, **named)

    def draft_extend_for_decode(self: Any, batch: Any, result: Any, *rest: Any, **named: Any) -> Any:
        tap.verified(self, batch, result.logits_output.hidden_states)
        return decode(self, batch, result, *rest, **named)

    EagleDraftWorker._draft_extend_for_prefill = draft_extend_for_prefill
    EagleDraftWorker._draft_extend_for_decode = draft_extend_for_decode


def of_prefill(worker: Any, batch: Any) -> tuple[list[int], list[int], torch.Tensor]:
    """(where each request's rows begin in it, how many they are, all their tokens)."""
    return [int(n) for n in batch.prefix_lens], [int(n) for n in batch.extend_lens], batch.input_ids


def of_verification(worker: Any, batch: Any) -> tuple[list[int], list[int], torch.Tensor]:
    begins = batch.seq_lens.tolist()  # as long as each request was before this step
    return begins, [worker.speculative_num_draft_tokens] * len(begins), batch.spec_info.draft_token


class Tap:
    def __init__(self, folder: Path, tokens: int) -> None:
        self._folder, self._left = folder, tokens
        self._step = 0

    def prefilled(self, worker: Any, batch: Any, states: torch.Tensor | None) -> None:
        """The tokens of the prompts that this step computed: without a cached beginning, or one chunk."""
        self._try(worker, batch, states, of_prefill)

    def verified(self, worker: Any, batch: Any, states: torch.Tensor | None) -> None:
        """The last token that was sure and the drafts after it, of which some may have been rejected."""
        self._try(worker, batch, states, of_verification)

    def _try(self, worker: Any, batch: Any, states: torch.Tensor | None, read: Any) -> None:
        """A tree's rows stand in another order than its drafts; `accept` asks for none."""
        try:
            wanted = worker.tp_rank == 0 and worker.topk == 1 and not batch.forward_mode.is_idle()
            if wanted and self._left > 0 and states is not None:
                self._write(worker, batch, states, *read(worker, batch))
        except Exception:  # noqa: BLE001  the server goes on, and the log says why nothing more is written
            self._left = 0
            traceback.print_exc()

    def _write(
        self,
        worker: Any,
        batch: Any,
        states: torch.Tensor,
        begins: Sequence[int],
        counts: Sequence[int],
        tokens: torch.Tensor,
    ) -> None:
        count = sum(counts)
        if self._left < count:
            self._left = 0
            return
        self._left -= count
        hidden = worker.target_worker.model_config.hidden_size
        rows = states[:count].cpu()
        found = {
            "names": [request.rid for request in batch.reqs],
            "counts": list(counts),
            "tokens": tokens[:count].cpu().clone(),
            "positions": torch.cat(
                [torch.arange(begin, begin + n) for begin, n in zip(begins, counts, strict=True)]
            ),
            "aux": rows.view(count, -1, hidden).transpose(0, 1).contiguous(),
        }
        self._step += 1
        path = self._folder / f"step-{self._step:06d}-{os.getpid()}.pt"
        torch.save(found, f"{path}.part")
        os.rename(f"{path}.part", path)
