"""When a server has been asked enough, and what is said of it until then.

It asks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from shakedown.acceptance.replay import FEWEST_REQUESTS
from shakedown.acceptance.rounds import Acceptance
from shakedown.jobs.accept_answers import Answered

BLOCK = 8  # one question of each kind
FEWEST_BLOCKS = 2
PLAIN_SPREAD = 0.03  # of the seconds a token takes: a plain server is known well enough within that


def block_size(concurrency: int) -> int:
    return max(BLOCK, 2 * concurrency)


def decided(answers: Sequence[Answered], found: Acceptance | None, drafts: int, margin: float) -> bool:
    if drafts:
        if found is None or found.requests < FEWEST_REQUESTS:  # fewer blocks could be compared with nothing
            return False
        if found.tokens_per_round.low is None or found.tokens_per_round.high is None:
            return False
        return found.tokens_per_round.high - found.tokens_per_round.low <= 2 * margin
    paces = [e.effort.seconds / e.effort.tokens for e in answers if e.effort.tokens]
    if len(paces) < FEWEST_BLOCKS * BLOCK:
        return False
    mean = fmean(paces)
    spread = stdev(paces) / math.sqrt(len(paces))
    return 2 * spread <= PLAIN_SPREAD * mean


def told(answers: Sequence[Answered], found: Acceptance | None) -> str:
    if found is not None:
        interval = found.tokens_per_round
        if interval.low is None or interval.high is None:
            return f"{interval.value:.2f} tokens a round"
        return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f}) tokens a round"
    tokens, seconds = (sum(getattr(e.effort, name) for e in answers) for name in ("tokens", "seconds"))
    return f"{tokens / seconds:.1f} tokens/s" if seconds else "no pace yet"


def too_few_blocks(concurrency: int, asked: int, known: int) -> str:
    """Why sums of blocks cannot decide, if `asked` of the `known` questions are asked; "" where they may."""
    size = block_size(concurrency)
    blocks, needed = -(-asked // size), FEWEST_REQUESTS * size
    if blocks >= FEWEST_REQUESTS:
        return ""
    more = f" and as many --prompts, of which there are {known}" if needed > known else ""
    return (
        f"at {concurrency} at once the server tells the rounds of blocks of {size} requests alone: {asked}"
        f" requests make {blocks} blocks, and fewer than {FEWEST_REQUESTS} decide nothing"
        f" (--requests {needed}{more}, or a smaller --concurrency)"
    )
