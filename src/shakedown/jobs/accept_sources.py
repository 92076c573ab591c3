"""Where a server tells the rounds of its answers, and why it tells none.

It asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from shakedown.acceptance.rounds import Source
from shakedown.jobs.accept_answers import Answered, counted, tallies_of
from shakedown.probe.generation import Generated

NO_HISTOGRAM = "its answers tell no histogram of accepted drafts"


def source_of(engine: str, answers: Sequence[Answered], counters: object) -> tuple[Source, str]:
    """(where rounds are told, why nowhere)."""
    if any(each.generated.rounds is not None for each in answers):
        return Source.ROUNDS, ""
    if any(each.generated.histogram for each in answers):
        return Source.HISTOGRAM, ""
    if any(tally.rounds for tally in tallies_of(answers)):
        return Source.COUNTERS, ""
    if isinstance(counters, str) and engine == "vllm":
        return Source.NONE, counters
    return Source.NONE, "it counts no round of speculation" if engine == "vllm" else NO_HISTOGRAM


def is_idle(engine: str, before: object, after: object, drafts: int) -> bool:
    """Whether rounds would have been counted, had there been any: SGLang's metrics never count them."""
    if not drafts or engine != "vllm":
        return False
    moved = counted(before, after, drafts)
    return after is None or (moved is not None and not moved.rounds)


def sums_alone(warm: Sequence[Generated], before: object, after: object, drafts: int) -> bool:
    """Whether rounds of these answers were counted, and not told by the answers themselves."""
    moved = counted(before, after, drafts)
    if moved is None or not moved.rounds:
        return False
    return all(each.rounds is None and each.histogram is None for each in warm)


def no_whole_round(answers: Sequence[Answered], drafts: int) -> str:
    """Why nothing is left of rounds that the server tells."""
    longest = max(len(each.generated.tokens) for each in answers)
    if longest >= drafts + 2:
        return f"in none of {len(answers)} answers is a round told that the end of the text cannot have cut"
    cut = max(each.came for each in answers) <= longest
    return (
        f"none of {len(answers)} answers is long enough: the longest has {longest} tokens, and a round of"
        f" {drafts} drafts that its end cannot cut needs {drafts + 2}"
        f" ({'ask for more --tokens' if cut else 'the model ends them itself: give other --prompts'})"
    )
