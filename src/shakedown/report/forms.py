"""Bodies for the bug forms of vLLM and SGLang: what these ask for, and what only a watched launch knows.

It never ticks a box for the user. Records and logs come without secrets; what a process or a fact says of
itself is searched for them once more, for these bodies go to the public.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from shakedown.core import BOOT_FACT, SearchRecord, TrialRecord, Verdict
from shakedown.redact import Redactor
from shakedown.report.escape import clean, code, fenced, prose
from shakedown.report.excerpt import LogExcerpt
from shakedown.report.recipe import first_cause, proven_recipe
from shakedown.report.shell import command, quote
from shakedown.report.words import (
    CHECKS,
    cause_words,
    check_words,
    not_known,
    phase_times,
    seconds_words,
    state_words,
    suspect_words,
    verdict_words,
)

MOST_TITLE = 110
LOG_LINES = 60
NAMING = ("host", BOOT_FACT)  # facts that tell which machine it was
LOG_WIDTH = 500  # with the lines above under the 65,536 characters that GitHub takes
MOST_EVIDENCE = 12


class Form(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"


def issue_body(
    form: Form,
    record: TrialRecord | SearchRecord,
    trials: Sequence[TrialRecord] = (),
    log: LogExcerpt | None = None,
) -> str:
    """`Title:`, a blank line, then one `###` section for each field of the form.

    `log` is that of the launch which fails: `failing_trial` names it.
    """
    shown = failing_trial(record, trials)
    sections = (_vllm if form is Form.VLLM else _sglang)(record, shown, trials, log)
    start = "[Bug]: " if form is Form.VLLM else "[Bug] "
    lines = [f"Title: {start}{_title(record, shown)}"]
    for title, body in sections:
        lines += ["", f"### {title}", "", *body[: len(body) - (not body[-1])]]
    return "\n".join(lines) + "\n"


def failing_trial(record: TrialRecord | SearchRecord, trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The shortest launch that fails as the user's own does: what a maintainer would run."""
    if isinstance(record, TrialRecord):
        return record
    found, cause = record.conclusion, first_cause(record.conclusion)
    if found is None:
        return next((trial for trial in trials if trial.judgement), None)
    named = {
        trial
        for name, check in (cause.certificate if cause else ())
        if name in ("alone_fails", "safe_mode_fails") and check.value
        for trial in check.trial_ids
    }
    failing = [
        trial
        for trial in trials
        if trial.judgement
        and trial.judgement.verdict is found.failing.verdict
        and (trial.id in named or trial is trials[0])
    ]
    failing.reverse()  # of equal ones the later: the user's own comes first
    return min(failing, key=lambda trial: len(trial.argv) + len(trial.env), default=None)


Sections = list[tuple[str, list[str]]]


def _vllm(
    record: TrialRecord | SearchRecord,
    shown: TrialRecord | None,
    trials: Sequence[TrialRecord],
    log: LogExcerpt | None,
) -> Sections:
    debug = dict(shown.env).get("VLLM_LOGGING_LEVEL") == "DEBUG" if shown else False
    wanted = [] if debug else ["This log was taken without `VLLM_LOGGING_LEVEL=DEBUG`.", ""]
    return [
        ("Your current environment", _environment(record, shown, "vllm.collect_env", log)),
        (
            "🐛 Describe the bug",
            [*_describe(record, shown), *_reproduction(record, shown, trials), *wanted, *_behind(shown, log)],
        ),
        (
            "Before submitting a new issue...",
            ["- [ ] Searched the existing issues and asked the docs' chatbot"],
        ),
    ]


def _sglang(
    record: TrialRecord | SearchRecord,
    shown: TrialRecord | None,
    trials: Sequence[TrialRecord],
    log: LogExcerpt | None,
) -> Sections:
    boxes = (
        "Searched related issues",
        "It persists in the latest version",
        "Environment and command are below",
    )
    return [
        (
            "Checklist",
            [f"- [ ] {box}" for box in (*boxes, "It is a bug, not a question", "It is in English")],
        ),
        ("Describe the bug", [*_describe(record, shown), *_behind(shown, log)]),
        ("Reproduction", [*_reproduction(record, shown, trials), *_model(record)]),
        ("Environment", _environment(record, shown, "sglang.check_env", log)),
    ]


def _title(record: TrialRecord | SearchRecord, shown: TrialRecord | None) -> str:
    judgement = record.judgement if isinstance(record, TrialRecord) else None
    cause = None
    if isinstance(record, SearchRecord) and record.conclusion:
        judgement, cause = record.conclusion.failing, first_cause(record.conclusion)
    judgement = judgement or (shown.judgement if shown else None)
    version = dict(record.facts).get("engine_version", "")
    what = verdict_words(judgement) if judgement else record.state.value
    if cause and cause.factors:
        what += f" with {' and '.join(cause.factors)}"
    elif judgement and judgement.cause:
        what += f": {judgement.cause}"
    return clean(f"{record.engine} {version} {what}", MOST_TITLE)


def _describe(record: TrialRecord | SearchRecord, shown: TrialRecord | None) -> list[str]:
    """The verdict in a sentence, where it stands, and what the search proved."""
    judgement = shown.judgement if shown else None
    if shown is None or judgement is None:
        return ["No launch was judged.", ""]
    took = f", after {seconds_words(shown.seconds)}" if shown.seconds is not None else ""
    lines = [f"What became of the server: **{prose(state_words(shown))}**{took}.", ""]
    if judgement.cause:
        lines += [f"First cause: {code(judgement.cause)}", ""]
    if judgement.suspect:
        lines += [f"The process that waits for no other one: {code(suspect_words(judgement.suspect))}", ""]
    frames = [frame for frame in judgement.fingerprint.split(" < ") if frame.strip()]
    if judgement.suspect and len(frames) > 1:
        lines += ["Its stack, innermost first:", "", *fenced((clean(frame) for frame in frames), "text"), ""]
    times = phase_times(judgement, shown.seconds)
    if times:
        rows = [f"| {time.phase.value} | {prose(time.words, 80)} |" for time in times]
        lines += ["| phase | time |", "|---|---|", *rows, ""]
    return lines + (_proven(record) if isinstance(record, SearchRecord) else [])


def _proven(search: SearchRecord) -> list[str]:
    cause = first_cause(search.conclusion)
    if cause is None:
        return []
    said = "Proven cause" if cause.proven else "Likely cause, not proven"
    lines = [f"{said}: {code(cause_words(cause, search.factors))}", ""]
    lines += [f"- {prose(check_words(name, check))}" for name, check in cause.certificate if name in CHECKS]
    nameless = replace(search, facts=tuple(fact for fact in search.facts if fact[0] not in NAMING))
    lines += [f"- not known: {prose(sentence)}" for sentence in not_known(nameless)]
    return [*lines, ""]


def _reproduction(
    record: TrialRecord | SearchRecord, shown: TrialRecord | None, trials: Sequence[TrialRecord]
) -> list[str]:
    fails = shown or record
    shortest = " (the shortest that was run)" if shown and isinstance(record, SearchRecord) else ""
    lines = [f"This fails{shortest}:", "", *fenced(command(fails.argv, env=fails.env), "sh"), ""]
    recipe = proven_recipe(record, trials) if isinstance(record, SearchRecord) else None
    if recipe:
        lines += ["This serves, on the same machine:", "", *fenced(recipe.lines(), "sh"), ""]
    return lines


def _model(record: TrialRecord | SearchRecord) -> list[str]:
    model = dict(record.facts).get("model_key", "")
    return [f"Model: {code(model)}", ""] if model else []


def _environment(
    record: TrialRecord | SearchRecord, shown: TrialRecord | None, module: str, log: LogExcerpt | None
) -> list[str]:
    """Room for the engine's own listing, with the command that makes it; below it what we recorded."""
    python = record.argv[0] if record.argv and "python" in record.argv[0].rsplit("/")[-1] else "python3"
    told = f"Paste here what this prints: {quote(python)} -m {module}"
    known = [(name, value) for name, value in record.facts if name not in NAMING and value]
    lines = _folded(f"The output of python -m {module}", [told])
    lines += ["Recorded at the launch:", "", f"- engine: {code(record.engine)}"]
    lines += [f"- {code(_public(f'{name}: {value}'))}" for name, value in known]
    lines += [f"- {code(_public(f'{name}={value}'))}" for name, value in (shown or record).env]
    if log and log.resolved:
        resolved = [_public(f"{name}={clean(value)}") for name, value in log.resolved]
        lines += ["", *_folded("Arguments as the engine resolved them", resolved)]
    return lines


def _behind(shown: TrialRecord | None, log: LogExcerpt | None) -> list[str]:
    lines: list[str] = []
    judgement = shown.judgement if shown else None
    if judgement and judgement.evidence and judgement.verdict is not Verdict.SERVES:
        seen = [
            f"{each.at_s:8.1f} s  {each.kind}" + (f", pid {each.pid}" if each.pid else "") + f": {each.text}"
            for each in judgement.evidence[:MOST_EVIDENCE]
        ]
        lines += _folded(
            "What was observed (seconds since the start)", [clean(_public(line), 400) for line in seen]
        )
    if log:
        lines += _folded("End of the log", [line[:LOG_WIDTH] for line in log.lines[-LOG_LINES:]])
    return lines


def _public(text: str) -> str:
    return Redactor.of({}, ()).redact_text(text)


def _folded(summary: str, lines: Iterable[str]) -> list[str]:
    """`summary` is ours."""
    return ["<details>", f"<summary>{summary}</summary>", "", *fenced(lines, "text"), "", "</details>", ""]
