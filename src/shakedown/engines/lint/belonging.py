"""Whether a drafter was made for this target: its width, its vocabulary, and what our export recorded of it.

It judges nothing that another version of an engine would see otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from shakedown.engines.lint.facts import (
    DrafterFacts,
    Finding,
    TargetConfig,
    misdrafting,
    not_loading,
    warning,
)
from shakedown.engines.lint.settings import Settings

# A tokenizer's vocabulary is padded to a multiple of 64 to 512, and one model's configs differ in that. Two
# vocabularies that differ by more are two.
PADDING = 1024
MEND = "serve the target that it was trained for, or train one for this target"


def judge_belonging(drafter: DrafterFacts, settings: Settings, target: TargetConfig) -> Iterator[Finding]:
    width = target.number("hidden_size")
    if width is not None and width != settings.target_hidden:
        yield not_loading(
            "other-target",
            "was made for another target: its fc takes states of another width",
            f"states of width {settings.target_hidden} are expected, the target's have {width}",
            MEND,
        )
    yield from _judge_record(drafter, target)
    vocab = target.number("vocab_size")
    if vocab is not None and vocab != settings.vocab:
        evidence = f"{settings.vocab} against the target's {vocab}"
        if abs(vocab - settings.vocab) < PADDING:
            yield warning(
                "vocab-size", "vocab_size is not the target's", evidence, f'set "vocab_size": {vocab}'
            )
        else:
            yield misdrafting(
                "vocab-size", "has another vocabulary than the target: its tokens mean others", evidence, MEND
            )


def _judge_record(drafter: DrafterFacts, target: TargetConfig) -> Iterator[Finding]:
    recorded = drafter.provenance
    found = {"target_layers": target.layers, "target_architecture": target.architecture}
    unlike = [
        f"{key} {recorded[key]} recorded at export, the target's {now}"
        for key, now in found.items()
        if now not in (None, "unknown") and recorded.get(key) not in (None, now)
    ]
    if unlike:
        yield misdrafting(
            "other-target",
            "was trained on the states of another target",
            "; ".join(unlike),
            MEND,
        )
