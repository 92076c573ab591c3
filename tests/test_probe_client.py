"""One request: refused, saturated, cut, encrypted; and one look at readiness."""

import shutil
import socket
import subprocess
import threading
import time
from dataclasses import replace

import pytest
from probe_servers import serving

from shakedown.probe import ReadyState, poll
from shakedown.probe.client import MOST_BYTES, Failure, send


def test_a_full_backlog_is_saturation_not_death():
    with serving("http_raw.py", "deaf") as target:
        port = int(target.base_url.rsplit(":", 1)[1])
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        answer = send(target, "/health", deadline_s=0.5)
        for one in crowd:
            one.close()
    assert answer.failure is Failure.CONNECT_TIMEOUT


def test_nobody_listening_is_refused():
    with serving("http_raw.py", "hold") as target:
        pass
    assert send(target, "/health", deadline_s=2).failure is Failure.REFUSED
    assert poll(target).state is ReadyState.REFUSED


@pytest.mark.parametrize("url", ["", "http://", "ftp://127.0.0.1", "http://[", "x"])
def test_an_address_that_is_none_is_a_value(url: str):
    with serving("http_raw.py", "hold") as target:
        answer = send(replace(target, base_url=url), "/health", deadline_s=2)
    assert answer.failure is Failure.UNREACHABLE


def test_a_key_no_header_can_hold_is_a_value():
    with serving("http_model.py", api_key="a\nb") as target:
        assert send(target, "/health", deadline_s=2).failure is not None
        assert send(replace(target, api_key="schlüssel"), "/health", deadline_s=2).ok


def test_a_dripping_server_is_cut_and_its_thread_ends():
    with serving("http_raw.py", "drip_head") as target:
        started = time.monotonic()
        answer = send(target, "/health", deadline_s=0.4)
        assert answer.failure is Failure.CUT
        assert time.monotonic() - started < 5
        names = [thread.name for thread in threading.enumerate()]
    assert "shakedown-probe" not in names


def test_a_cut_answer_keeps_what_came():
    with serving("http_raw.py", "drip_body") as target:
        answer = send(target, "/health", deadline_s=0.5)
    assert (answer.status, answer.failure) == (200, Failure.CUT)
    assert answer.body.startswith(b" ")


def test_a_huge_answer_is_left_alone():
    with serving("http_raw.py", "huge") as target:
        answer = send(target, "/health", deadline_s=10)
    assert answer.failure is Failure.TOO_BIG
    assert len(answer.body) <= MOST_BYTES


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving("http_model.py") as target:
        assert send(target, "/health", deadline_s=5).ok


@pytest.mark.parametrize("by_proxy", [False, True])
def test_a_proxy_of_the_environment_is_asked_only_for_what_a_user_typed(
    monkeypatch: pytest.MonkeyPatch, by_proxy: bool
):
    """A launch on an address that is no loopback: the proxy's 403 was taken for its answer."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving("http_model.py", by_proxy=by_proxy) as target:
        elsewhere = replace(target, base_url=target.base_url.replace("127.0.0.1", "0.0.0.0"))
        answer = send(elsewhere, "/health", deadline_s=5)
    assert answer.failure is (Failure.REFUSED if by_proxy else None)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_launch_with_a_certificate_of_its_own_is_spoken_to(tmp_path):
    pem = tmp_path / "server.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=launch",
    ]
    subprocess.run(
        [*request, "-keyout", str(pem), "-out", str(tmp_path / "cert")], check=True, capture_output=True
    )
    pem.write_text(pem.read_text() + (tmp_path / "cert").read_text())
    with serving("http_raw.py", "null", str(pem)) as target:
        secure = replace(target, base_url=target.base_url.replace("http:", "https:"))
        assert send(secure, "/health", deadline_s=10).ok
        assert send(target, "/health", deadline_s=10).failure is Failure.BROKEN
    with serving("http_raw.py", "drip_body", str(pem)) as target:
        secure = replace(target, base_url=target.base_url.replace("http:", "https:"))
        assert send(secure, "/health", deadline_s=1).failure is Failure.CUT


def test_readiness_is_one_look():
    with serving("http_model.py", "--name", "tiny") as target:
        look = poll(target)
        assert (look.state, look.model) == (ReadyState.ANSWERING, "tiny")
        assert poll(replace(target, model="other")).model == "tiny"
        assert poll(replace(target, model="other", engine="transformers")).model == "other"
    with serving("http_model.py", "--fault", "starting") as target:
        assert poll(target).state is ReadyState.NOT_YET
    with serving("http_model.py", "--fault", "strict", model="mine") as target:
        look = poll(target)
        assert (look.state, look.model) == (ReadyState.ANSWERING, "mine")
    with serving("http_model.py", "--key", "k3y") as target:
        assert "401" in poll(target).why
    with serving("http_raw.py", "hold") as target:
        assert poll(target, 0.4).state is ReadyState.NOT_YET


def test_a_stream_that_is_left_open_after_its_last_word_is_a_whole_answer():
    with serving("http_model.py", "--fault", "left_open") as target:
        body = {"prompt": "one two one", "max_tokens": 3, "stream": True}
        answer = send(target, "/v1/completions", body, deadline_s=60.0)
    assert answer.ok
    assert b"completion_tokens" in answer.body
