"""Ladders from the reference: documents through the target's layers, one layer in memory at a time.

It never looks at what an engine captured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

import torch

from shakedown.drafter.capture import Request, batches
from shakedown.drafter.capture_transformers import padded
from shakedown.drafter.decoder import Decoder
from shakedown.drafter.rungs import Ladder, distance, pick_rows
from shakedown.drafter.saying import Say, seldom
from shakedown.drafter.target import Target

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
    layers = decoder.target.layers
    states = [decoder.embed(padded(batch)) for batch in groups]
    found: Climb = {
        request.sample: (torch.empty(layers + 2, len(pick_rows(request.length)), width), {})
        for batch, width in ((batch, decoder.target.hidden_size) for batch in groups)
        for request in batch
    }
    for layer in range(layers):
        say(f"reference in {str(decoder.dtype)[6:]}: layer {layer + 1} of {layers}")
        with ExitStack() as stack:
            stack.enter_context(decoder.loaded([layer]))
            added = stack.enter_context(decoder.branch(layer)) if layer + 1 in branches else None
            for number, batch in enumerate(groups):
                for request, rows in picked(batch, states[number]):
                    found[request.sample][0][layer] = rows
                states[number] = decoder.forward(states[number])
                if added is not None:
                    for request, rows in picked(batch, added.pop().view_as(states[number])):
                        found[request.sample][1][layer + 1] = rows
    for number, batch in enumerate(groups):
        for request, rows in picked(batch, states[number]):
            found[request.sample][0][layers] = rows
        for request, rows in picked(batch, decoder.norm(states[number])):
            found[request.sample][0][layers + 1] = rows
    return found


def picked(batch: Sequence[Request], states: torch.Tensor) -> list[tuple[Request, torch.Tensor]]:
    """The picked rows of each document of a batch, float32 [R, H] on the host."""
    return [
        (request, states[number, pick_rows(request.length).to(states.device)].float().cpu())
        for number, request in enumerate(batch)
    ]
