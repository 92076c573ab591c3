"""Commands of ours about a record: how to do the same again, and what a user does now.

Each is given as the record was made: on its machine, with its ledger, with the options that were given.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import takewhile

from shakedown.core import (
    INTERMITTENT_FACT,
    LEDGER_FACT,
    OPTIONS_FACT,
    SSH_FACT,
    VIA_FACT,
    Ended,
    RecordState,
    SearchRecord,
    TrialRecord,
    Verdict,
)
from shakedown.report.shell import NODES_COMMAND, WIDTH, command, quote, quoted
from shakedown.report.words import NOWHERE

OF_RUN = ("--deadline", "--keep", "--detach")  # what these say of one launch is not meant for a search


def ours(verb: str, entry_id: str, facts: Mapping[str, str]) -> str:
    """`shakedown VERB ID`, with the ledger that it is in."""
    return " ".join(("shakedown", verb, entry_id, *at_ledger(facts)))


def at_ledger(facts: Mapping[str, str]) -> tuple[str, ...]:
    return ("--ledger", quote(facts[LEDGER_FACT])) if LEDGER_FACT in facts else ()


def options_of(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Our own options as they were given, quoted; secrets are asked for by name."""
    return tuple(quoted(shlex.split(facts.get(OPTIONS_FACT, ""))))


def elsewhere(facts: Mapping[str, str]) -> str:
    """The option that leads to the machine of a launch, with a blank behind it; "" for this one."""
    ways = (("--host", SSH_FACT), ("--via", VIA_FACT))
    return "".join(f"{option} {shlex.quote(facts[fact])} " for option, fact in ways if fact in facts)


def next_steps(record: TrialRecord | SearchRecord) -> tuple[str, ...]:
    """What a user does now, one line each; commands in it begin with `shakedown`."""
    facts = dict(record.facts)
    if isinstance(record, SearchRecord):
        again = ours("isolate --resume", record.id, facts)
        if "nodes" in facts:
            again += f" --launch {record.argv[-1]}"
        if record.state is RecordState.INTERRUPTED:
            return (again,)
        found = record.conclusion
        if found and found.ended is Ended.BUDGET:
            return (f"{again} --max-launches N, with a higher N",)
        return (f"{ours('report', record.id, facts)} --output report.md",) if found else ()
    if "attached" in facts:
        return _after_attach(record, facts)
    if record.state is RecordState.INTERRUPTED or record.kept_running:
        return (ours("stop", record.id, facts),)
    if record.judgement is None or record.judgement.serves or record.search_id:
        return ()
    if record.judgement.fingerprint in NOWHERE:
        return (
            "say where its API is with --port, --ready-url or its own --root-path: shakedown run --help",
            "what has none can be watched, but not judged: nothing was generated",
        )
    if record.judgement.environment or record.judgement.verdict is Verdict.UNDECIDED:
        return ("run it once more: this one says nothing about the launch",)
    options = takewhile(lambda word: word not in OF_RUN, options_of(facts))
    marks = elsewhere(facts) + "".join(f"{word} " for word in (*options, *at_ledger(facts)))
    marks += "".join(f"--expect '{it.expectation}' " for it in record.judgement.measured)
    if "nodes" in facts:
        return (f"shakedown isolate {marks}--launch {record.argv[-1]}",)
    return (f"shakedown isolate {marks}-- CMD, with the same CMD",)


def _after_attach(trial: TrialRecord, facts: Mapping[str, str]) -> tuple[str, ...]:
    """A server that somebody else started: its launch can be tried anew, and it can be ended, on request."""
    pid, judgement = facts.get("pid"), trial.judgement
    if judgement is None or judgement.serves:
        return ()
    if pid is None or judgement.verdict is Verdict.UNDECIDED:
        return ("attach once more: this one says nothing about the server",)
    where = f"{elsewhere(facts)}--pid {pid}"
    search = " ".join(("shakedown isolate", where, *at_ledger(facts)))
    return (search, f"shakedown stop {where}, which shows what it would end")


def stated_marks(record: TrialRecord | SearchRecord) -> tuple[str, ...]:
    """What a launch was to meet, as --expect takes it."""
    if isinstance(record, SearchRecord):
        return tuple(filter(None, dict(record.facts).get("expect", "").split("; ")))
    return tuple(str(it.expectation) for it in record.judgement.measured) if record.judgement else ()


def rerun(record: TrialRecord | SearchRecord, *, width: int = WIDTH) -> list[str]:
    """How to do the same again, from the folder it was done in."""
    verb = "isolate" if isinstance(record, SearchRecord) else "run"
    own, argv = "--", record.argv
    if argv[: len(NODES_COMMAND)] == NODES_COMMAND:
        own, argv = NODES_COMMAND[-1], argv[len(NODES_COMMAND) :]
    facts = dict(record.facts)
    there = elsewhere(facts).strip()
    marks = [f"--expect {quote(mark)}" for mark in stated_marks(record)]
    if INTERMITTENT_FACT in facts:
        marks.append("--intermittent")
    given = (*options_of(facts), *at_ledger(facts))
    start = ("shakedown", verb, *filter(None, [there]), *given, *marks, own)
    if there:  # its folder and its variables are there anyway
        return command(argv, before=start, width=width)
    again = command(argv, env=record.env, before=start, width=width)
    return [f"cd {quote(record.cwd)}", *again]
