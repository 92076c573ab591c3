"""Two servers' answers to the same questions, side by side: where their texts part, and how fast each was.

It asks the plain server alone, and only how likely a token was.
"""

from __future__ import annotations

from shakedown.acceptance.identity import TIE_NATS, Parting, gap_between, parting_at
from shakedown.acceptance.pace import Pace, pace_of
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_measure import Measurement
from shakedown.probe import Target
from shakedown.probe.generation import top_logprobs

LIKELIEST = (20, 5, 1)  # a server may be told to list fewer than the first
LOGPROBS_S = 60.0


def paired(one: Measurement, other: Measurement) -> list[tuple[Answered, Answered]]:
    """The answers to the same questions."""
    known = {each.question.text: each for each in other.answers}
    return [(each, known[each.question.text]) for each in one.answers if each.question.text in known]


def texts(one: Measurement, other: Measurement) -> list[tuple[Answered, Answered]]:
    """The answers to the same questions as far as both servers tell their tokens."""
    pairs = paired(one, other)
    return [(ours, theirs) for ours, theirs in pairs if ours.generated.tokens and theirs.generated.tokens]


def partings(target: Target, plain: Measurement, other: Measurement) -> list[Parting]:
    """Where the answers of another server part from the plain one's, which is asked how likely both were."""
    found = []
    for ours, theirs in texts(plain, other):
        said, meant = ours.generated.tokens, theirs.generated.tokens
        where = parting_at(said, meant)
        if where is None:
            continue
        context = (*ours.prompt, *said[:where])
        likeliest = likeliest_after(target, context) if ours.prompt else "its prompt is not known"
        if isinstance(likeliest, str):
            found.append(Parting(token=where, gap_nats=None))
            continue
        gap = gap_between(likeliest, meant[where])
        unlisted = gap is None and max(likeliest.values()) - min(likeliest.values()) > TIE_NATS
        found.append(Parting(token=where, gap_nats=gap, unlisted=unlisted))
    return found


def likeliest_after(target: Target, context: tuple[int, ...]) -> dict[int, float] | str:
    """As many as the server lists."""
    found: dict[int, float] | str = ""
    for number in LIKELIEST:
        found = top_logprobs(target, context, number=number, deadline_s=LOGPROBS_S)
        if not isinstance(found, str):
            break
    return found


def pace_between(plain: Measurement, drafted: Measurement) -> Pace | None:
    pairs = paired(plain, drafted)
    rates = [each.value for each in drafted.acceptance.unconditional] if drafted.acceptance else []
    return pace_of([p.effort for p, _ in pairs], [d.effort for _, d in pairs], rates)


def drift_between(before: Measurement, after: Measurement) -> float | None:
    """How much slower a token of the plain server came after than before, as a share."""
    pace = pace_between(before, after)
    return pace.round_cost.value - 1 if pace else None
