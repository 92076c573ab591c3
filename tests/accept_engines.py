"""One launch of an engine with a drafter, its states written down, a fault planted: judged as by `accept`.

It measures no speed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unjudged import unjudged

from shakedown.acceptance.rounds import acceptance_of
from shakedown.acceptance.verdict import Finding, Shown, judge
from shakedown.core import Launch
from shakedown.drafter.tapped import PLUGGED
from shakedown.host.local import LocalHost
from shakedown.jobs.accept_answers import tallies_of
from shakedown.jobs.accept_expect import ReferenceDrafter, expect_drafter, requests_of
from shakedown.jobs.accept_launches import ROUND_METRICS, contenders
from shakedown.jobs.accept_measure import Measurement, Plan, measure_server
from shakedown.jobs.accept_questions import Question, in_token_ids
from shakedown.jobs.accept_states import Serve, StatesSeen, see_states
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.serving import while_serving
from shakedown.probe import Target

LOG = "server.log"
PLANTS = Path(__file__).parent / "bad_servers"


class Loud:
    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def progress(self, progress: object) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    shown: Shown
    finding: Finding
    seen: StatesSeen

    @property
    def faults(self) -> dict[str, str]:
        return {each.stage: each.fault for each in self.seen.findings}


def vllm_argv(python: Path, model: Path, port: int) -> list[str]:
    start = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    small = ["--max-model-len", "512", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1"]
    return [*start, *small, "--port", str(port)]


def install_plant(folder: Path, name: str, engine: str = "vllm") -> dict[str, str]:
    """The variables that plant a fault in an engine started with them."""
    about = folder / "planted_faults-1.dist-info"
    about.mkdir(parents=True)
    module = f"{engine}_plants"
    shutil.copy(PLANTS / f"{module}.py", folder)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted_faults\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{PLUGGED[engine].group}]\nplants = {module}:register\n")
    return {"PYTHONPATH": str(folder), "PLANTED": name}


def asked(texts: Sequence[str]) -> tuple[Question, ...]:
    return tuple(Question(kind="", text=text) for text in texts)


def look(
    argv: list[str],
    model: Path,
    drafter: Path,
    questions: tuple[Question, ...],
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    drafts: int = 3,
    tokens: int = 40,
    serve: Serve | None = None,
) -> Looked:
    """`argv` is the plain server; `env` comes on top of this process's own. Without `serve`, such as
    `while_serving`, the server itself is not judged, and its log is LOG in `folder`."""
    launch = Launch(argv=tuple(argv), env={**os.environ, **(env or {})}, cwd=folder)
    request = LaunchRequest(launch=launch, ledger=folder / "ledger.db")
    talk = Loud()
    reading = read_request(request, LocalHost(), talk, live=True)
    _, (contender,) = contenders(reading.command, reading.table, (drafter,), drafts)
    if reading.command.engine.name == "sglang":
        questions = in_token_ids(questions, model)
    plan = plan_of(questions, tokens, drafts)
    reference = ReferenceDrafter.load(drafter, model)
    seen = see_states(
        request, contender, reference, plan, talk, concurrency=1, serve=serve or unjudged(folder / LOG)
    )
    documents = reference.states(requests_of(seen.answers))
    acceptance = acceptance_of(tallies_of(seen.answers))
    shown = Shown(
        measured=acceptance.tokens_per_round if acceptance else None,
        reference=expect_drafter(reference, documents, seen.answers, drafts, plan.margin),
        engine_states=seen.cell,
        cost_of_states=seen.cost,
        proposals=seen.cell.alike if seen.cell else None,
        states=seen.findings,
    )
    return Looked(shown=shown, finding=judge(shown), seen=seen)


def measure_alone(
    argv: list[str], questions: tuple[Question, ...], folder: Path, *, drafts: int, tokens: int
) -> Measurement:
    """One speculating launch, measured without a plain one beside it."""
    launch = Launch(argv=(*argv, ROUND_METRICS, "detailed"), env=dict(os.environ), cwd=folder)
    request = LaunchRequest(launch=launch, ledger=folder / "ledger.db")
    plan = plan_of(questions, tokens, drafts)
    talk = Loud()

    def work(target: Target) -> Measurement:
        return measure_server(target, plan, concurrency=1, number=len(questions), talk=talk)

    return while_serving(request, talk, work)


def plan_of(questions: tuple[Question, ...], tokens: int, drafts: int) -> Plan:
    return Plan(questions=questions, tokens=tokens, most=len(questions), margin=0.1, drafts=drafts)
