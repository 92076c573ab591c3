"""`shakedown accept`: the server with and without its drafter, what it should accept, and who is to blame.

It decides nothing of its own: rooms measure, walk and judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from shakedown.acceptance.identity import Identity
from shakedown.acceptance.verdict import judge
from shakedown.engines.lint import Level
from shakedown.errors import Interrupted, ShakedownError, UsageError
from shakedown.host.local import LocalHost
from shakedown.jobs.accept_compare import pace_between, partings, texts
from shakedown.jobs.accept_ends import end_ids
from shakedown.jobs.accept_launches import Contender, contenders
from shakedown.jobs.accept_measure import Measurement, Plan, measure_server
from shakedown.jobs.accept_questions import Question, in_token_ids, read_questions
from shakedown.jobs.accept_race import Kept, Raced, drifts, first_shown, race_of
from shakedown.jobs.accept_request import AcceptRequest, first_sample, target_folder
from shakedown.jobs.draft_lint import LintRequest, lint_as_installed
from shakedown.jobs.outside import model_folder
from shakedown.jobs.reading import Reading, read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.result import JobResult, Talk
from shakedown.jobs.serving import while_serving
from shakedown.probe import Target

INTERRUPTED = "interrupted; what was started has been ended, what was measured is told"


def accept_job(request: AcceptRequest, launch: LaunchRequest, talk: Talk) -> JobResult:
    """Raises UsageError for a command that cannot be compared, EnvironmentProblem for a server that dies.

    Once a server has been measured, what cuts all the rest is told beside what was measured until then.
    """
    from shakedown.jobs.accept_result import dry_result, misfit_result, result_of

    reading = read_request(launch, LocalHost(), talk, live=True)
    plain, others = contenders(reading.command, reading.table, request.drafters, request.drafts)
    if launch.dry_run:
        return dry_result([plain, *others])
    if request.trained_on is not None:
        first_sample(request.trained_on)
    misfits = {each.name: lint_errors(each, reading, request) for each in others}
    fitting = [each for each in others if not misfits[each.name]]
    if not fitting:
        return misfit_result(request, others, misfits)
    for each in others:
        if misfits[each.name]:
            talk.say(f"accept: {each.name} is left out: {misfits[each.name][0]}")
    kept = Kept()
    try:
        run_race(request, launch, reading, plain, fitting, talk, kept)
    except (KeyboardInterrupt, ShakedownError) as problem:
        if isinstance(problem, UsageError) or not kept.measured:
            raise
        cut = problem if isinstance(problem, ShakedownError) else Interrupted(INTERRUPTED)
        talk.say(f"accept: {cut.message}")
        return result_of(race_of(request, launch.launch, reading, kept, fitting, cut))
    return result_of(race_of(request, launch.launch, reading, kept, fitting))


def run_race(
    request: AcceptRequest,
    launch: LaunchRequest,
    reading: Reading,
    plain: Contender,
    others: Sequence[Contender],
    talk: Talk,
    kept: Kept,
) -> None:
    """Plain, each drafter, plain again: by restart, so that none shares the machine with another."""
    plan = Plan(
        questions=questions_for(request, reading, talk),
        tokens=request.tokens,
        most=request.most,
        margin=request.margin,
        ends=end_ids(request, reading),
    )
    serve = partial(serve_and_measure, launch, request, talk, kept)
    before = serve(plain, plan, [None] * len(request.concurrency))
    drafted = []
    for each in others:
        drafted.append(serve(each, replace(plan, drafts=each.drafts), [None] * len(request.concurrency)))
    most = [max(len(found[at].answers) for found in (before, *drafted)) for at in range(len(before))]

    def again(target: Target) -> tuple[Measurement, ...]:
        measured = measure_all(target, plan, request.concurrency, most, talk, kept)
        own = tuple(partings(target, measured[0], before[0]))
        own_compared = len(texts(measured[0], before[0]))
        for found in drafted:
            kept.identities.append(
                Identity(
                    compared=len(texts(measured[0], found[0])),
                    partings=tuple(partings(target, measured[0], found[0])),
                    own=own,
                    own_compared=own_compared,
                )
            )
        return measured

    talk.say(f"accept: {plain.name}, once more")
    kept.begin(plain, "the plain server was measured once more")
    after = while_serving(replace(launch, launch=plain.launch), talk, again)
    for each, found, identity in zip(others, drafted, kept.identities, strict=True):
        kept.doing = f"it was worked out what {each.name} should give"
        kept.raced.append(
            judged(request, launch, reading, each, found, identity, (before, after), plan, talk)
        )


def judged(
    request: AcceptRequest,
    launch: LaunchRequest,
    reading: Reading,
    contender: Contender,
    found: tuple[Measurement, ...],
    identity: Identity,
    plain: tuple[tuple[Measurement, ...], tuple[Measurement, ...]],
    plan: Plan,
    talk: Talk,
) -> Raced:
    """One drafter beside the plain server before and after it."""
    from shakedown.jobs.accept_blame import expected_of  # torch, where it is needed at all

    before, after = plain
    talk.say(f"accept: what {contender.name} should give")
    first = first_shown(request, found[0], after[0], identity, drifts(before, after)[0])
    own = replace(plan, drafts=contender.drafts)
    shown, seen = expected_of(request, reading, launch, contender, found[0], first, own, talk)
    return Raced(
        contender=contender,
        measured=found,
        paces=tuple(pace_between(p, d) for p, d in zip(after, found, strict=True)),
        drift=drifts(before, after),
        shown=shown,
        seen=seen,
        finding=judge(shown),
    )


def serve_and_measure(
    launch: LaunchRequest,
    request: AcceptRequest,
    talk: Talk,
    kept: Kept,
    contender: Contender,
    plan: Plan,
    numbers: Sequence[int | None],
) -> tuple[Measurement, ...]:
    talk.say(f"accept: {contender.name}")
    kept.begin(contender, f"{contender.name} was measured")
    own = replace(launch, launch=contender.launch)
    return while_serving(
        own, talk, lambda target: measure_all(target, plan, request.concurrency, numbers, talk, kept)
    )


def measure_all(
    target: Target,
    plan: Plan,
    concurrency: Sequence[int],
    numbers: Sequence[int | None],
    talk: Talk,
    kept: Kept,
) -> tuple[Measurement, ...]:
    return tuple(
        measure_server(target, plan, concurrency=each, number=number, talk=talk, keep=kept.add)
        for each, number in zip(concurrency, numbers, strict=True)
    )


def questions_for(request: AcceptRequest, reading: Reading, talk: Talk) -> tuple[Question, ...]:
    """In token ids for SGLang, whose interface for tokens is the one that tells rounds."""
    questions = read_questions(request.prompts, lambda text: talk.say(f"accept: {text}"))
    if reading.command.engine.name != "sglang":
        return questions
    return in_token_ids(questions, target_folder(request, reading))


def lint_errors(contender: Contender, reading: Reading, request: AcceptRequest) -> tuple[str, ...]:
    """Why this engine would not draft with it as trained; () where the lint finds nothing, or cannot look."""
    told = contender.speculation
    if told is None or not told.eagle3 or not Path(told.drafter).is_dir():
        return ()
    target = Path(request.target) if request.target else model_folder(reading.command)
    asked = LintRequest(
        drafter=Path(told.drafter),
        target=target if target is not None and target.is_dir() else None,
        engine=reading.command.engine.name,
    )
    reports = lint_as_installed(asked, reading.command.interpreter)
    clean = [r for r in reports if not any(f.level is Level.ERROR for f in r.findings)]
    if clean:  # one of its runners drafts as trained: which one runs is measured
        return ()
    errors = [f for report in reports for f in report.findings if f.level is Level.ERROR]
    return tuple(dict.fromkeys(f"{f.rule}: {f.what}" + (f" ({f.mend})" if f.mend else "") for f in errors))
