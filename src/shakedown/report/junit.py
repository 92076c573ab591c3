"""Runs and searches as JUnit XML, for the pages of a CI.

It never names a case after an ID, a time or a pid: a CI tells cases apart, and follows them, by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from shakedown.core import Judgement, RecordState, SearchRecord, TrialRecord, Verdict
from shakedown.report.escape import clean
from shakedown.report.recipe import first_cause
from shakedown.report.shell import command
from shakedown.report.words import ENDED, cause_words, kept_words, state_words

LONGEST = 2000


def junit_xml(record: TrialRecord | SearchRecord, trials: Sequence[TrialRecord] = ()) -> str:
    """One suite. A launch that serves passes, one that was not decided is skipped, all others fail."""
    search = record if isinstance(record, SearchRecord) else None
    cases = [record] if isinstance(record, TrialRecord) else list(trials)
    suite = ET.Element("testsuite", name=f"shakedown {'isolate' if search else 'run'} {clean(record.engine)}")
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(record):
        ET.SubElement(properties, "property", name=clean(name), value=clean(value, LONGEST))
    for at, trial in enumerate(cases, 1):
        _case(suite, at, trial, search)
    counts = {
        "tests": len(cases),
        "failures": len(suite.findall("testcase/failure")),
        "errors": 0,
        "skipped": len(suite.findall("testcase/skipped")),
    }
    seconds = record.seconds if record.seconds is not None else math.fsum(_finite(t.seconds) for t in cases)
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{_finite(seconds):.3f}")
    suite.set("timestamp", clean(record.started_at[:19], 40))  # the schema has no zone; it is UTC
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def signature_type(judgement: Judgement) -> str:
    """`hung.waiting.dist_init`, and the fingerprint, which knows no pid and no path of the machine."""
    parts = [judgement.verdict.value, judgement.wait.value if judgement.wait else "", judgement.phase.value]
    fingerprint = clean(judgement.fingerprint, 400)
    return ".".join(filter(None, parts)) + (f": {fingerprint}" if fingerprint else "")


def _properties(record: TrialRecord | SearchRecord) -> list[tuple[str, str]]:
    found = record.conclusion if isinstance(record, SearchRecord) else None
    pairs = [("id", record.id), *record.facts, ("command", " ".join(command(record.argv, width=LONGEST)))]
    if found and isinstance(record, SearchRecord):
        pairs.append(("ended", ENDED[found.ended]))
        pairs.append(("cause", cause_words(first_cause(found), record.factors)))
    return pairs


def _case(suite: ET.Element, at: int, trial: TrialRecord, search: SearchRecord | None) -> None:
    experiment = trial.experiment
    name = "launch"
    if experiment and search:
        purpose = experiment.purpose.value.replace("_", " ")
        name = f"{at} {purpose}, {clean(kept_words(trial, search.factors), 200)}"
    case = ET.SubElement(suite, "testcase", name=name, classname=f"shakedown.{_word(trial.engine)}")
    case.set("time", f"{_finite(trial.seconds):.3f}")
    judgement = trial.judgement
    if judgement is None:
        waiting = "interrupted" if trial.state is RecordState.INTERRUPTED else "not finished"
        ET.SubElement(case, "skipped", message=waiting)
    elif judgement.verdict is Verdict.UNDECIDED or judgement.environment:
        ET.SubElement(case, "skipped", message=clean(f"{state_words(trial)}: {judgement.cause}", LONGEST))
    elif not judgement.serves:
        message = clean(judgement.cause or state_words(trial), LONGEST)
        failure = ET.SubElement(case, "failure", type=signature_type(judgement), message=message)
        failure.text = "\n".join([state_words(trial), *_observed(judgement)])
    said = ET.SubElement(case, "system-out")
    said.text = "\n".join([clean(trial.id), *command(trial.argv, env=trial.env)])


def _observed(judgement: Judgement) -> list[str]:
    return [
        clean(
            f"{each.at_s:.1f} s {each.kind}" + (f" pid {each.pid}" if each.pid else "") + f": {each.text}",
            400,
        )
        for each in judgement.evidence
    ]


def _word(name: str) -> str:
    return re.sub(r"\W+", "_", clean(name))


def _finite(seconds: float | None) -> float:
    return seconds if seconds is not None and math.isfinite(seconds) else 0.0
