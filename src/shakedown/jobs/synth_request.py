"""What was asked of a synthesis, and what of it every sample of one folder has in common.

It never asks a server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shakedown.drafter.conversation import Wishes
from shakedown.drafter.prompts import BUILT_IN, Prompt
from shakedown.drafter.server import Sampling, Way
from shakedown.drafter.template import ChatTemplate
from shakedown.errors import UsageError

SCHEMA = "shakedown-synth/1"
WITHOUT_PROMPTS = 1000  # conversations, where neither prompts nor a number say how many


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthRequest:
    """What was asked for. `wanted` None: each prompt once. `prompts` None: the target writes them."""

    target: str
    out: Path
    server: str | None = None
    prompts: Path | None = None
    wanted: int | None = None
    concurrency: int = 64
    wishes: Wishes = field(default_factory=Wishes)
    template_options: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False

    @classmethod
    def of(
        cls,
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
        turns: int,
        keep_reasoning: bool,
        keep_truncated: bool,
        **others: Any,
    ) -> SynthRequest:
        """From options one by one, as a command line or a recipe gives them."""
        wishes = Wishes(
            sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens),
            keep_reasoning=keep_reasoning,
            keep_truncated=keep_truncated,
            turns=turns,
        )
        return cls(wishes=wishes, **others)


def number_wanted(request: SynthRequest, prompts: list[Prompt] | None) -> int:
    if prompts is None:
        return request.wanted or WITHOUT_PROMPTS
    wanted = request.wanted or len(prompts)
    if wanted > len(prompts) and request.wishes.sampling.greedy:
        raise UsageError(
            f"{len(prompts)} prompts give {len(prompts)} greedy conversations, not {wanted}: "
            "the same prompt has the same answer",
            "give more prompts, or a --temperature above 0",
        )
    return wanted


def settings_of(request: SynthRequest, template: ChatTemplate) -> dict[str, Any]:
    """What every sample of one folder has in common."""
    wishes = request.wishes
    return {
        "schema": SCHEMA,
        "model": request.target,
        "template": template.sha256,
        "template_options": dict(request.template_options),
        "sampling": asdict(wishes.sampling),
        "reasoning": "kept" if wishes.keep_reasoning else "dropped",
        "truncated": "kept" if wishes.keep_truncated else "left out",
        "prompts": digest(request.prompts) if request.prompts else None,
        "turns": None if request.prompts else wishes.turns,
    }


def digest(path: Path) -> str:
    return BUILT_IN if str(path) == BUILT_IN else hashlib.sha256(path.read_bytes()).hexdigest()


def about(request: SynthRequest, template: ChatTemplate, way: Way) -> dict[str, Any]:
    """What each sample says of how it came to be."""
    settings = settings_of(request, template)
    sampling = settings["sampling"] | {
        "reasoning": settings["reasoning"],
        "template_options": settings["template_options"],
        "way": way.value,
    }
    return {"model": request.target, "template": template.sha256, "sampling": sampling}
