"""The record of a search: what it keeps, what it cannot keep, and what a resume must be given again."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import CONCLUSION

from shakedown.core import Launch, RecordState, SearchRecord
from shakedown.errors import UsageError
from shakedown.host.local import LocalHost
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
        take_up(one, LocalHost(), earlier, Silence())
        with pytest.raises(UsageError, match="s1 is still going on in another process"):
            take_up(other, LocalHost(), earlier, Silence())
