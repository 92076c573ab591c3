"""Is what the model says right? Judged from numbers handed in, never from one greedy string.

It never sends a request.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from shakedown.core import Verdict
from shakedown.probe.answers import Scored

# SmolLM2-135M reads the passages at 2.2, 0.9 and 0.4 nats; random weights, rotated tokenizers and
# zeroed tensors read 9 to 22; the smallest vocabulary in use (32,000) has 10.4 at random.
WRONG_NATS = 6.0
CLAMP_NATS = 25.0  # vLLM sends -9999 for minus infinity; one such token must not carry a mean
# Decode against prefill of a healthy server differs by 0.014 nats in the median and 0.19 at most; bf16
# modes of one model by 0.05 on average. Ten times that is no rounding. A MoE route that flips moves
# single tokens, not every fifth by a nat.
WRONG_MEDIAN_NATS = 0.5
OUTLIER_NATS = 1.0
WRONG_OUTLIERS = 0.2
ODD_OUTLIERS = 0.05
FEWEST_TOKENS = 32  # compared, below which layer 2 says nothing
LOOP_CHARACTERS = 12
CONSTANT_NATS = 1e-3  # spread over all passages; real text spreads by 1 and more


class LayerState(StrEnum):
    PASSED = "passed"
    ODD = "odd"  # seen, but decides nothing alone
    FAILED = "failed"
    NOT_AVAILABLE = "not available"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One check of the canary and its numbers; `text` is one line."""

    name: str
    state: LayerState
    text: str
    numbers: tuple[tuple[str, float], ...] = ()


def judge_logits(passages: Mapping[str, Scored]) -> Layer:
    """NaN, constant logits, or numbers that are no log-probabilities at all."""
    values = [value for scored in passages.values() for value in _read(scored, 1, len(scored.logprobs))]
    if any(math.isnan(value) for value in values):
        return Layer(name="logits", state=LayerState.FAILED, text="NaN among the log-probabilities")
    if not values:
        return unavailable("logits", "no log-probabilities came")
    if max(values) > 0.01:
        return unavailable(
            "logits", f"up to {max(values):.1f}: logits, no log-probabilities (--logprobs-mode)"
        )
    spread = statistics.pstdev(_clamp(value) for value in values)
    if len(values) >= FEWEST_TOKENS and spread < CONSTANT_NATS:
        text = f"constant logits: all {len(values)} tokens at {values[0]:.3f} nats"
        return Layer(name="logits", state=LayerState.FAILED, text=text, numbers=(("spread", spread),))
    text = f"spread of {spread:.2f} nats over {len(values)} tokens"
    return Layer(name="logits", state=LayerState.PASSED, text=text, numbers=(("spread", spread),))


def judge_nll(passages: Mapping[str, Scored]) -> Layer:
    """Mean negative log-likelihood per token of the fixed passages: wrong above 6 on two of three."""
    means = []
    for name, scored in passages.items():
        values = [_clamp(value) for value in _read(scored, 1, scored.prompt_tokens)]
        if len(values) * 2 >= scored.prompt_tokens and not any(math.isnan(value) for value in values):
            means.append((name, -statistics.fmean(values)))
    if len(means) < 2:
        return unavailable("nll", "fewer than two passages could be read")
    above = sum(mean > WRONG_NATS for _, mean in means)
    state = (LayerState.PASSED, LayerState.ODD, LayerState.FAILED)[min(above, 2)]
    text = ", ".join(f"{name} {mean:.2f}" for name, mean in means) + " nats a token"
    return Layer(name="nll", state=state, text=text, numbers=tuple(means))


def judge_consistency(decoded: Scored, rescored: Scored) -> Layer:
    """The same tokens as generated one by one, and as read in one piece by the same server.

    The prompt, read in one piece both times, gives this server's own noise beside it.
    """
    name = "decode_vs_prefill"
    same = _common(decoded.tokens, rescored.tokens)
    ours = _differences(decoded, rescored, decoded.prompt_tokens, min(same, rescored.prompt_tokens))
    noise = _differences(decoded, rescored, 1, min(same, decoded.prompt_tokens))
    if len(ours) < FEWEST_TOKENS:
        return unavailable(
            name, f"{len(ours)} generated tokens could be compared, {FEWEST_TOKENS} are needed"
        )
    median, share = statistics.median(ours), sum(d > OUTLIER_NATS for d in ours) / len(ours)
    floor = statistics.median(noise) if len(noise) >= FEWEST_TOKENS else 0.0
    text = (
        f"median {median:.3f} nats, at most {max(ours):.2f}, {share:.0%} off by more than 1 nat, "
        f"over {len(ours)} tokens; reading the prompt twice: {floor:.3f}"
    )
    state = LayerState.PASSED
    if share > ODD_OUTLIERS:
        state = LayerState.ODD
    if median > WRONG_MEDIAN_NATS or share > WRONG_OUTLIERS or floor > WRONG_MEDIAN_NATS:
        state = LayerState.FAILED
    numbers = (("median", median), ("max", max(ours)), ("outliers", share), ("floor", floor))
    return Layer(name=name, state=state, text=text, numbers=(*numbers, ("tokens", float(len(ours)))))


def judge_repetition(texts: Iterable[str]) -> Layer:
    """Endless repetition in every answer. In one alone it may be a small model's habit."""
    seen = [text for text in texts if len(text) >= LOOP_CHARACTERS]
    looped = [text for text in seen if is_loop(text)]
    if len(seen) < 2:
        return unavailable("repetition", "fewer than two answers long enough")
    state = LayerState.PASSED if not looped else LayerState.ODD
    if len(looped) == len(seen):
        state = LayerState.FAILED
    text = f"{len(looped)} of {len(seen)} answers repeat one piece for ever"
    return Layer(name="repetition", state=state, text=text)


def is_loop(text: str) -> bool:
    """Whether one piece of at most 16 characters, five times or more, makes up the whole text."""
    for period in range(1, 17):
        if len(text) >= max(LOOP_CHARACTERS, 5 * period) and text[period:] == text[:-period]:
            return True
    return False


def decide(layers: Iterable[Layer]) -> tuple[Verdict, str, str]:
    """Verdict, cause and fingerprint from the numeric layers alone (an answer has been seen)."""
    by_name = {layer.name: layer for layer in layers}

    def state(name: str) -> LayerState:
        return by_name[name].state if name in by_name else LayerState.NOT_AVAILABLE

    for name, what in _ALONE:
        if state(name) is LayerState.FAILED:
            return Verdict.WRONG, f"{what}: {by_name[name].text}", f"canary: {what}"
    failed = [name for name in ("copy", "code_word") if state(name) is LayerState.FAILED]
    if len(failed) == 2:
        what = "cannot copy a list and forgets a code word"
        return Verdict.WRONG, f"{what} ({by_name['copy'].text})", f"canary: {what}"
    if failed and not all(state(name) is LayerState.PASSED for name in ("nll", "decode_vs_prefill")):
        what = f"{failed[0]} failed, and nothing else decides"
        return Verdict.UNDECIDED, f"{what}: {by_name[failed[0]].text}", f"canary: {what}"
    if state("two_at_once") is LayerState.ODD:  # the layers above ask one thing at a time
        what = "wrong once when two requests ran at once"
        return Verdict.UNDECIDED, f"{what}: {by_name['two_at_once'].text}", f"canary: {what}"
    return Verdict.SERVES, "", ""


_ALONE = (
    ("logits", "the numbers are broken"),
    ("nll", "plain text reads like noise to it"),
    ("repetition", "endless repetition"),
    ("two_at_once", "wrong when two requests run at once"),
    ("decode_vs_prefill", "decode and prefill disagree"),
)


def unavailable(name: str, why: str) -> Layer:
    return Layer(name=name, state=LayerState.NOT_AVAILABLE, text=why)


def _read(scored: Scored, first: int, last: int) -> list[float]:
    return [value for value in scored.logprobs[first:last] if value is not None]


def _clamp(value: float) -> float:
    return max(-CLAMP_NATS, min(0.0, value))


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    for position, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return position
    return min(len(a), len(b))


def _differences(a: Scored, b: Scored, first: int, last: int) -> list[float]:
    pairs = zip(a.logprobs[first:last], b.logprobs[first:last], strict=False)
    return [
        abs(_clamp(left) - _clamp(right))
        for left, right in pairs
        if left is not None and right is not None and not math.isnan(left) and not math.isnan(right)
    ]
