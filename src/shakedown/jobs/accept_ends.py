"""Where an answer ends by the model's own mark: servers are asked past it, so that all answers run as long.

It asks nobody. A drafter is trained up to the mark only: what is drafted past it says nothing of the drafter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from shakedown.acceptance.rounds import place_rounds
from shakedown.drafter.template import load_template, read_end_ids
from shakedown.errors import ShakedownError, UsageError
from shakedown.jobs.accept_request import AcceptRequest, target_folder
from shakedown.jobs.reading import Reading
from shakedown.probe.generation import Generated


def end_ids(request: AcceptRequest, reading: Reading) -> frozenset[int]:
    """The target's end marks, as samples are cut at; none where it is not known where the target lies."""
    try:
        folder = target_folder(request, reading)
    except UsageError:
        return frozenset()
    try:
        return load_template(str(folder)).end_ids
    except ShakedownError:  # no tokenizer or no chat template: what the configs name
        return frozenset(read_end_ids(folder))


def ended(tokens: Sequence[int], ends: Collection[int]) -> int:
    """How many tokens an answer has, its end mark included."""
    return next((number for number, token in enumerate(tokens, 1) if token in ends), len(tokens))


def rounds_within(generated: Generated, tokens: int) -> tuple[int, ...] | None:
    """Those that began before the last of so many tokens; all, where it is not known where they began."""
    placed = place_rounds(generated.rounds or (), len(generated.tokens))
    if placed is None:
        return generated.rounds
    return tuple(each.accepted for each in placed if each.start < tokens - 1)


def until_end(generated: Generated, ends: Collection[int], *, drafted: bool) -> Generated:
    """As a server would have answered that stops at the mark: the round it falls into is the last one.

    Whole where rounds were drafted and it is not known where they began.
    """
    length = ended(generated.tokens, ends)
    if length == len(generated.tokens):
        return generated
    if drafted and place_rounds(generated.rounds or (), len(generated.tokens)) is None:
        return generated
    came, arrivals = 0, []
    for at_s, number in generated.arrivals:
        if came >= length:
            break
        arrivals.append((at_s, number))
        came += number
    return replace(
        generated,
        tokens=generated.tokens[:length],
        arrivals=tuple(arrivals),
        rounds=rounds_within(generated, length),
    )
