"""`shakedown draft synth`: the data that a drafter learns from, made by the target itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, TypeVar

from shakedown.drafter.conversation import Interview, LeftOut
from shakedown.drafter.journal import LEFT_OUT, SAMPLES, Journal
from shakedown.drafter.prompts import read_prompts
from shakedown.drafter.server import Way, find_way
from shakedown.drafter.synth import Asked, Standing, synthesise
from shakedown.drafter.template import Mismatch, load_template
from shakedown.drafter.transport import Address, ServerLost, ask_once
from shakedown.errors import UsageError
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import ExitCode, JobResult, Talk
from shakedown.jobs.serving import with_server
from shakedown.jobs.synth_request import SynthRequest, about, number_wanted, settings_of
from shakedown.probe import Target
from shakedown.redact import Redactor
from shakedown.report.escape import line_of_block

T = TypeVar("T")
SHOWN_LINES = 24
SAID = {
    Way.COMPLETIONS: "token by token, over /v1/completions",
    Way.GENERATE: "token by token, over /generate",
    Way.CHAT: "as text over /v1/chat/completions: it tells no tokens, so they are made from the text",
}


def synth_job(request: SynthRequest, launch: LaunchRequest, talk: Talk) -> JobResult:
    """Holds the conversations that are not yet held. Raises UsageError, EnvironmentProblem."""
    return synth_jobs([request], request.server, launch, talk)[0]


def synth_jobs(
    requests: Sequence[SynthRequest], server: str | None, launch: LaunchRequest, talk: Talk
) -> list[JobResult]:
    """Several sets of data with one server, one after the other; it is started only if one is not whole."""
    with ExitStack() as opened:
        sets = [opened.enter_context(Synthesis(request, talk, look=launch.dry_run)) for request in requests]
        if launch.dry_run:
            return [each.planned() for each in sets]
        if any(each.left for each in sets):

            def work(target: Target) -> None:
                for each in sets:
                    if each.left:
                        each.hold(target)

            with_server(server, launch, talk, work)
        return [each.result() for each in sets]


class Synthesis:
    """One set of data: all that can be wrong with it is found before a server is started for it."""

    def __init__(self, request: SynthRequest, talk: Talk, *, look: bool = False) -> None:
        """`look`: nothing is to be held. Raises UsageError, HostProblem."""
        self.request, self._talk = request, talk
        self._prompts = read_prompts(request.prompts) if request.prompts else None
        wanted = number_wanted(request, self._prompts)
        self._template = load_template(
            request.target, request.template_options, trust_remote_code=request.trust_remote_code
        )
        if self._prompts is None:
            checked(lambda: self._template.opening([]))
        self._journal = Journal(request.out, settings_of(request, self._template), look=look)
        self._asked = Asked(self._prompts, wanted, self._journal)
        self._before = self._journal.samples
        self._standing: Standing | None = None
        if self._journal.done:
            talk.say(f"synth: {len(self._journal.done)} conversations are there already")

    def __enter__(self) -> Synthesis:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    @property
    def left(self) -> int:
        return self._asked.left

    def hold(self, target: Target) -> None:
        """Holds what is left, at this server. Raises ServerLost, HostProblem, UsageError."""
        request, template, journal = self.request, self._template, self._journal
        address = Address(url=target.base_url, model=target.model or request.target, api_key=target.api_key)
        hello = checked(lambda: template.prompt(HELLO))
        way = ask_once(address, lambda client: find_way(client, hello))
        where = Redactor().redact_text(address.url)
        self._talk.say(f"synth: {address.model} at {where} is asked {SAID[way]}")
        if way is Way.CHAT or not request.wishes.keep_reasoning:
            checked(template.check)  # only there it makes tokens of answers
        written = journal.first_turns if self._prompts is None else ()
        try:
            self._standing = synthesise(
                Interview(template, way, request.wishes, written),
                address,
                journal,
                self._asked,
                concurrency=request.concurrency,
                about=about(request, template, way),
                listener=Speaker(self._talk),
            )
        except ServerLost as problem:
            kept = f"{journal.samples:,} samples are kept; the same command goes on from there"
            raise ServerLost(problem.message, kept) from None

    def planned(self) -> JobResult:
        where = Redactor().redact_text(self.request.server or "") or "the server that the command starts"
        line = (
            f"would hold {self.left} conversations with {where}, {self.request.concurrency} at a time, "
            f"for {self.request.out / SAMPLES}"
        )
        document = self._document() | {"dry_run": [line]}
        return JobResult(document=document, lines=[line], exit_code=ExitCode.GOOD)

    def result(self) -> JobResult:
        journal, standing = self._journal, self._standing
        path = self.request.out / SAMPLES
        lines = [f"{path}: {journal.samples:,} samples, {journal.generated:,} tokens generated"]
        if standing:
            lines.append(
                f"  now       {journal.samples - self._before:,} samples in {standing.seconds:.0f} s, "
                f"{standing.tokens_per_s:,.0f} tokens/s"
            )
            lines += [f"  left out  {count:,}: {reason}" for reason, count in standing.left_out.items()]
        lacking = self._asked.wanted - self._asked.held
        if lacking and not self.left:
            lines.append(
                f"  short     {lacking:,} of {self._asked.wanted:,} conversations: "
                "the target writes too little that is kept"
            )
        if journal.left_out:
            lines.append(f"  each in   {self.request.out / LEFT_OUT}")
        code = ExitCode.GOOD if journal.samples else ExitCode.BAD
        return JobResult(document=self._document(), lines=lines, exit_code=code)

    def _document(self) -> dict[str, Any]:
        journal, standing = self._journal, self._standing
        return {
            "schema": "shakedown/1",
            "command": "draft synth",
            "verdict": None,
            "path": str(self.request.out / SAMPLES),
            "samples": journal.samples,
            "generated_tokens": journal.generated,
            "new_samples": journal.samples - self._before,
            "left_out": journal.left_out,
            "left_out_now": dict(standing.left_out) if standing else {},
            "seconds": standing.seconds if standing else 0.0,
            "tokens_per_s": standing.tokens_per_s if standing else None,
        }


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
        left_s = standing.left_s
        left = f", {timedelta(seconds=round(left_s))} to go" if left_s is not None else ""
        held = f"{standing.done:,} of {standing.wanted:,} held"
        self.talk.say(f"{standing.seconds:6.0f} s  {held}, {rate}{out}{left}")

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
