"""The parity scan before a long capture: a few sequences through a backend and through the reference.

It never goes on by itself: what it finds is handed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from shakedown.drafter.capture import Capture, Request, read_requests
from shakedown.drafter.ladders import build_ladders
from shakedown.drafter.memory import give_back, layer_fits
from shakedown.drafter.parity import ParityFinding, compare_states
from shakedown.drafter.rungs import Ladder, pick_rows
from shakedown.drafter.saying import Say
from shakedown.drafter.shards import Document
from shakedown.drafter.target import Target
from shakedown.errors import DataProblem

SEQUENCES = 64


def scanned_requests(samples: Path, sequences: int = SEQUENCES) -> list[Request]:
    """The first samples of a file, their last state wanted on every row."""
    return [
        replace(request, rows=torch.arange(request.length))
        for request in islice(read_requests(samples), sequences)
    ]


def scan_ladders(target: Target, requests: Sequence[Request], *, device: str, say: Say) -> list[Ladder]:
    """The reference's side, made before a backend takes the memory."""
    say(f"parity: the reference computes {len(requests)} sequences, a layer at a time")
    ladders = build_ladders(
        target,
        requests,
        device=device,
        exact_device=device if layer_fits(target, device, torch.float32) else "cpu",
        branches=target.aux_inputs_of,
        say=say,
    )
    give_back()  # an engine counts what is free
    return ladders


def scan(
    capture: Capture, target: Target, requests: Sequence[Request], ladders: Sequence[Ladder]
) -> ParityFinding:
    """Raises DataProblem where the backend gives no states for a request."""
    found = {document.sample: document for document in capture.capture(requests)}
    for request in requests:
        if request.sample not in found:
            raise DataProblem(f"{capture.backend.name} gave no states for {request.place}")
    states = [slots_of(found[request.sample], target) for request in requests]
    return compare_states(states, ladders, (*target.aux_inputs_of, ladders[0].final))


def slots_of(document: Document, target: Target) -> torch.Tensor:
    """[slots, R, H] on the rows of the document's ladder: the aux states, then the last one."""
    aux = document.aux.view(len(document.tokens), -1, target.hidden_size).transpose(0, 1)
    return torch.cat([aux, document.last[None]])[:, pick_rows(len(document.tokens))]
