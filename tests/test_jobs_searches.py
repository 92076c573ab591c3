"""The record of a search: what it keeps, what it cannot keep, and what a resume must be given again."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import CONCLUSION

from shakedown.core import Experiment, FlagTable, Launch, Purpose, RecordState, SearchRecord
from shakedown.errors import UsageError
from shakedown.host import files
from shakedown.host.local import LocalHost
from shakedown.host.reach import free_port
from shakedown.jobs.oracle import TrialOracle
from shakedown.jobs.reading import read_request
from shakedown.jobs.request import LaunchRequest
from shakedown.jobs.searches import new_search, request_of, take_up
from shakedown.ledger import Ledger

TOKEN = "hf_" + "q" * 34
READY = "http://me:s3cretPassw0rd@127.0.0.1:8123/health"


class Silence:
    def say(self, text: str) -> None: ...
    def progress(self, progress: object) -> None: ...


def request(folder: Path, env: dict[str, str], **options: object) -> LaunchRequest:
    launch = Launch(argv=(sys.executable, "server.py", "--alpha"), env=env, cwd=folder)
    return LaunchRequest(launch=launch, **options)  # type: ignore[arg-type]


def interrupted(given: LaunchRequest) -> SearchRecord:
    reading = read_request(given, LocalHost(), Silence(), live=False)
    return replace(new_search("s1", reading, given, (), 0, "", 1.0), state=RecordState.INTERRUPTED)


def test_a_search_keeps_the_names_of_its_secrets(tmp_path):
    env = {"HF_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7MDENG", "HF_HOME": "/hf"}
    earlier = interrupted(request(tmp_path, env))
    assert [name for name, _ in earlier.secrets] == ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY"]
    assert "wJalr" not in repr(earlier)
    assert TOKEN not in repr(earlier)


def test_a_secret_that_is_not_here_is_named_and_no_launch_goes_without_it(tmp_path):
    earlier = interrupted(request(tmp_path, {"HF_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIK7"}))
    with pytest.raises(UsageError, match="this shell has not: HF_TOKEN, AWS_SECRET_ACCESS_KEY"):
        request_of(earlier, request(tmp_path, {}))
    env = {"HF_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "another"}
    assert request_of(earlier, request(tmp_path, env)).launch.env == env


def test_a_url_with_a_password_is_asked_for_again_and_never_used_without(tmp_path):
    earlier = interrupted(request(tmp_path, {}, ready_url=READY))
    with pytest.raises(UsageError, match="--ready-url of s1 holds a secret"):
        request_of(earlier, request(tmp_path, {}))
    assert request_of(earlier, request(tmp_path, {}, ready_url=READY)).ready_url == READY


def test_of_two_resumes_at_once_one_is_refused_before_it_ends_or_launches_anything(tmp_path):
    earlier = interrupted(request(tmp_path, {}))
    with Ledger.open(tmp_path / "l.db") as one, Ledger.open(tmp_path / "l.db") as other:
        one.open_search(earlier)
        one.close_search(earlier.id, CONCLUSION, seconds=1.0)
        reading = read_request(request(tmp_path, {}), LocalHost(), Silence(), live=False)
        take_up(one, LocalHost(), earlier, reading, Silence())
        with pytest.raises(UsageError, match="s1 is still going on in another process"):
            take_up(other, LocalHost(), earlier, reading, Silence())


class Machine(LocalHost):
    """This one, with the boot and the driver that it is told."""

    def __init__(self, standing: dict[str, str]) -> None:
        super().__init__(orphaned=True)  # its supervisors need nobody to wait for them
        self._standing = standing

    def ask(self, question, *arguments, **named):
        return (
            dict(self._standing) if question is files.standing else super().ask(question, *arguments, **named)
        )


def version_of_today(reading, version: str):
    table = FlagTable(engine="vllm", version=version, source="live", flags=(), env=frozenset(), device="")
    return replace(reading, table=table)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "10.0"}, "engine_version was 9.9, is 10.0"),
        ({"boot": "b2"}, "boot was b1, is b2"),
        ({"driver": "580.1"}, "driver was 570.1, is 580.1"),
        ({"driver": ""}, "driver was 570.1, is none"),
        ({}, ""),
    ],
)
def test_launches_of_before_a_change_are_asked_anew_and_named(tmp_path, change, told):
    before = {"version": "9.9", "boot": "b1", "driver": "570.1"}
    kept, said = Experiment(kept=frozenset(), purpose=Purpose.SAFE_MODE, reason=""), []
    talk = Silence()
    talk.say = said.append

    def oracle(ledger, surroundings):
        standing = {name: value for name, value in surroundings.items() if name != "version" and value}
        machine = Machine(standing)
        reading = read_request(given, machine, Silence(), live=False)
        reading = version_of_today(reading, surroundings["version"])
        asked = TrialOracle(ledger, machine, reading, given, (), "s1", talk, max_launches=9)
        return asked, reading

    program = (sys.executable, "-c", "raise SystemExit('broken')", "--port", str(free_port()))
    given = replace(request(tmp_path, dict(os.environ)), engine="vllm")
    given = replace(given, launch=replace(given.launch, argv=program))
    with Ledger.open(tmp_path / "l.db") as ledger:
        earlier = interrupted(given)
        ledger.open_search(earlier)
        first = oracle(ledger, before)[0](kept)
        ledger.close_search("s1", CONCLUSION, seconds=1.0)
        again, reading = oracle(ledger, before | change)
        take_up(ledger, reading.machine, earlier, reading, talk)
        assert told in said[-1] if told else "asked anew" not in said[-1]
        assert (again(kept).trial_id == first.trial_id) == (not change)
