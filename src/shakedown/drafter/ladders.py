"""Ladders from the reference: documents through the target's layers, one layer in memory at a time.

It never looks at what an engine captured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from shakedown.drafter.capture import Request, batches
from shakedown.drafter.capture_transformers import padded
from shakedown.drafter.decoder import Decoder
from shakedown.drafter.rungs import Ladder, distance, pick_rows
from shakedown.drafter.saying import Say, seldom
from shakedown.drafter.target import Target
from shakedown.drafter.threads import one_thread

Climb = dict[int, tuple[torch.Tensor, dict[int, torch.Tensor]]]  # by sample: rungs [N + 2, R, H], branches


def build_ladders(
    target: Target,
    requests: Sequence[Request],
    *,
    device: str,
    branches: Collection[int],
    exact_device: str | None = None,
    say: Say = lambda text: None,
    batch_tokens: int = 4096,
) -> list[Ladder]:
    """A ladder for each request, in order. `branches` are the rungs whose last addition is kept too;
    `exact_device` computes in float32, where that is another than `device`."""
    groups, speak = list(batches(requests, batch_tokens)), seldom(say)
    rounded = climb(Decoder(target, torch.bfloat16, device), groups, (), speak)
    exact = climb(Decoder(target, torch.float32, exact_device or device), groups, branches, speak)
    norm_weight = target.final_norm().float()
    with one_thread():
        return [
            Ladder(
                rows=pick_rows(request.length),
                rungs=exact[request.sample][0],
                noise=distance(rounded[request.sample][0], exact[request.sample][0]),
                branches=exact[request.sample][1],
                norm_weight=norm_weight,
                norm_eps=target.rms_eps,
            )
            for request in requests
        ]


@torch.inference_mode()
def climb(
    decoder: Decoder, groups: Sequence[Sequence[Request]], branches: Collection[int], say: Say
) -> Climb:
    """Every rung of every document on its picked rows, float32 on the host."""
    layers, width = decoder.target.layers, decoder.target.hidden_size
    states = [decoder.embed(padded(batch)) for batch in groups]
    picks = [Picks.of(batch, decoder.device) for batch in groups]
    rungs = [torch.empty(layers + 2, len(pick.places), width) for pick in picks]
    kept = [{rung: torch.empty(len(pick.places), width) for rung in sorted(branches)} for pick in picks]
    for layer in range(layers):
        say(f"reference in {str(decoder.dtype)[6:]}: layer {layer + 1} of {layers}")
        with ExitStack() as stack:
            stack.enter_context(decoder.loaded([layer]))
            added = stack.enter_context(decoder.branch(layer)) if layer + 1 in branches else None
            for number, pick in enumerate(picks):
                pick.keep(states[number], rungs[number][layer])
                states[number] = decoder.forward(states[number])
                if added is not None:
                    pick.keep(added.pop(), kept[number][layer + 1])
    found: Climb = {}
    for number, (batch, pick) in enumerate(zip(groups, picks, strict=True)):
        pick.keep(states[number], rungs[number][layers])
        pick.keep(decoder.norm(states[number]), rungs[number][layers + 1])
        cut = {rung: torch.split(branch, pick.lengths) for rung, branch in kept[number].items()}
        for place, (request, rows) in enumerate(
            zip(batch, torch.split(rungs[number], pick.lengths, dim=1), strict=True)
        ):
            found[request.sample] = (rows, {rung: parts[place] for rung, parts in cut.items()})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Picks:
    """The picked rows of a batch: `places` in its states [B · T, H], `lengths` document by document."""

    places: torch.Tensor
    lengths: list[int]

    @classmethod
    def of(cls, batch: Sequence[Request], device: torch.device) -> Picks:
        rows = [pick_rows(request.length) for request in batch]
        places = [row + number * batch[0].length for number, row in enumerate(rows)]
        return cls(places=torch.cat(places).to(device), lengths=[len(row) for row in rows])

    @one_thread()
    def keep(self, states: torch.Tensor, into: torch.Tensor) -> None:
        """All at once: a copy for each document would wait for the device as often."""
        into.copy_(states.flatten(0, -2)[self.places])
