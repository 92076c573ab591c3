"""`shakedown draft synth`: the data that a drafter learns from, made by the target itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from shakedown.drafter.conversation import Interview, LeftOut, Wishes
from shakedown.drafter.journal import LEFT_OUT, SAMPLES, Journal
from shakedown.drafter.prompts import BUILT_IN, Prompt, read_prompts
from shakedown.drafter.server import Sampling, Way, find_way
from shakedown.drafter.synth import Standing, synthesise, work_of
from shakedown.drafter.template import ChatTemplate, Mismatch, load_template
from shakedown.drafter.transport import Address, ask_once
from shakedown.errors import UsageError
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.serving import with_server
from shakedown.probe import Target
from shakedown.report.escape import line_of_block

T = TypeVar("T")
SCHEMA = "shakedown-synth/1"
WITHOUT_PROMPTS = 1000  # conversations, where neither prompts nor a number say how many
SHOWN_LINES = 24
SAID = {
    Way.COMPLETIONS: "token by token, over /v1/completions",
    Way.GENERATE: "token by token, over /generate",
    Way.CHAT: "as text over /v1/chat/completions: it tells no tokens, so they are made from the text",
}


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


def synth_job(request: SynthRequest, launch: LaunchRequest, talk: Talk) -> JobResult:
    """Holds the conversations that are not yet held. Raises UsageError, EnvironmentProblem."""
    prompts = read_prompts(request.prompts) if request.prompts else None
    wanted = number_wanted(request, prompts)
    template = load_template(
        request.target, request.template_options, trust_remote_code=request.trust_remote_code
    )
    if prompts is None:
        checked(lambda: template.opening([]))
    with Journal(request.out, settings_of(request, template)) as journal:
        before = (journal.samples, journal.generated)
        if journal.done:
            talk.say(f"synth: {len(journal.done)} conversations are there already")
        left = wanted - len(journal.done & set(range(wanted)))
        standing = None
        if left and launch.dry_run:
            where = request.server or "the server that the command starts"
            line = f"would hold {left} conversations with {where}, {request.concurrency} at a time"
            return result_of(request, journal, None, before, [line])
        if left:
            speaker = Speaker(talk)

            def work(target: Target) -> Standing:
                return hold_all(request, target, template, journal, prompts, wanted, speaker)

            standing = with_server(request.server, launch, talk, work)
        return result_of(request, journal, standing, before, [])


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


def hold_all(
    request: SynthRequest,
    target: Target,
    template: ChatTemplate,
    journal: Journal,
    prompts: list[Prompt] | None,
    wanted: int,
    speaker: Speaker,
) -> Standing:
    address = Address(url=target.base_url, model=target.model or request.target, api_key=target.api_key)
    hello = checked(lambda: template.prompt(HELLO))
    way = ask_once(address, lambda client: find_way(client, hello))
    speaker.talk.say(f"synth: {address.model} at {address.url} is asked {SAID[way]}")
    if way is Way.CHAT or not request.wishes.keep_reasoning:
        checked(template.check)  # only there it makes tokens of answers
    settings = settings_of(request, template)
    sampling = settings["sampling"] | {
        "reasoning": settings["reasoning"],
        "template_options": settings["template_options"],
        "way": way.value,
    }
    return synthesise(
        Interview(template, way, request.wishes, journal.first_turns if prompts is None else ()),
        address,
        journal,
        work_of(prompts, wanted, journal.done),
        wanted=wanted,
        concurrency=request.concurrency,
        about={"model": request.target, "template": template.sha256, "sampling": sampling},
        listener=speaker,
    )


HELLO = [{"role": "user", "content": "Hello."}]


def checked(look: Callable[[], T]) -> T:
    """Raises UsageError showing what the template makes of a conversation, where it is no good."""
    try:
        return look()
    except Mismatch as problem:
        raise UsageError(
            f"the chat template cannot be used: {problem.why}",
            *("  " + line for line in block(problem.shown)),
        ) from None


class Speaker:
    """Says how a synthesis goes."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

    def standing(self, standing: Standing) -> None:
        rate = f"{standing.tokens_per_s:,.0f} tokens/s"
        out = f", {sum(standing.left_out.values())} left out" if standing.left_out else ""
        self.talk.say(
            f"{standing.seconds:6.0f} s  {standing.done:,} of {standing.wanted:,} held, {rate}{out}"
        )

    def first_sample(self, shown: str) -> None:
        self.talk.say("the first sample; a drafter learns what stands in ⟦ ⟧:")
        for line in block(shown):
            self.talk.say(f"  | {line}")

    def left_out(self, number: int, left_out: LeftOut) -> None:
        detail = f" ({line_of_block(left_out.detail)})" if left_out.detail else ""
        self.talk.say(f"left out {number:07d}: {left_out.reason.value}{detail}; the first of its kind:")
        for line in block(left_out.shown):
            self.talk.say(f"  | {line}")


def block(text: str) -> list[str]:
    """Untrusted text as few lines: its beginning and its end."""
    lines = [line_of_block(line, limit=160) for line in text.splitlines()]
    if len(lines) <= SHOWN_LINES:
        return lines
    return [*lines[: SHOWN_LINES - 7], f"… {len(lines) - SHOWN_LINES + 1} lines more …", *lines[-6:]]


def result_of(
    request: SynthRequest,
    journal: Journal,
    standing: Standing | None,
    before: tuple[int, int],
    plan: list[str],
) -> JobResult:
    left_out = {reason.value: count for reason, count in (standing.left_out if standing else {}).items()}
    path = request.out / SAMPLES
    document = {
        "schema": "shakedown/1",
        "command": "draft synth",
        "verdict": None,
        "path": str(path),
        "samples": journal.samples,
        "generated_tokens": journal.generated,
        "new_samples": journal.samples - before[0],
        "left_out": journal.left_out,
        "left_out_now": left_out,
        "seconds": standing.seconds if standing else 0.0,
        "tokens_per_s": standing.tokens_per_s if standing else None,
    }
    if plan:
        return JobResult(document=document | {"dry_run": plan}, lines=plan, exit_code=ExitCode.GOOD)
    lines = [f"{path}: {journal.samples:,} samples, {journal.generated:,} tokens generated"]
    if standing:
        lines.append(
            f"  now       {journal.samples - before[0]:,} samples in {standing.seconds:.0f} s, "
            f"{standing.tokens_per_s:,.0f} tokens/s"
        )
    for reason, count in left_out.items():
        lines.append(f"  left out  {count:,}: {reason}")
    if left_out:
        lines.append(f"  each in   {request.out / LEFT_OUT}")
    return JobResult(
        document=document, lines=lines, exit_code=ExitCode.GOOD if journal.samples else ExitCode.BAD
    )
