"""The server's output: never in its way, never a secret, never beyond its limit."""

import os
import signal

import pytest
from host_runs import launch_of, wait_for
from hypothesis import given
from hypothesis import strategies as st

from shakedown.host.local import LocalHost
from shakedown.host.output import RedactedLog
from shakedown.host.scrub import Scrubber
from shakedown.host.segments import read_log
from shakedown.redact import Redactor

SECRET = "cAnary/0123+secret=value"
REDACTOR = Redactor.of({"CANARY_TOKEN": SECRET}, ())


def used_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob("launch.log*"))


def read_all(host, run):
    text, offset = b"", 0
    while True:
        piece, offset = host.read_log(run, offset)
        if not piece:
            return text
        text += piece


def test_no_secret_told_in_any_way_reaches_the_disk(tmp_path):
    host = LocalHost()
    run = host.start(launch_of("proc_tell.py", env={"CANARY_TOKEN": SECRET}), tmp_path / "run")
    try:
        wait_for(lambda: b"told\n" in host.read_log(run, 0)[0])
    finally:
        host.end(run, grace_s=0)
    lines = read_all(host, run).decode().splitlines()
    assert lines[:3] == ["plain [redacted]", "split [redacted] end", "coloured [redacted]"]
    assert lines[3] == "url [redacted]"
    assert all("[redacted]" in line for line in lines[4:7])
    assert lines[7:9] == ["10% [redacted]", "20% [redacted]"]
    assert lines[9].endswith("[line cut]")
    for path in run.folder.iterdir():
        text = path.read_text()
        assert not any(SECRET[at : at + 8] in text for at in range(len(SECRET) - 8)), path


@pytest.mark.slow
def test_a_flood_never_blocks_the_server_and_stays_under_the_limit(tmp_path):
    limit_bytes = 8 << 20
    host = LocalHost(log_bytes=limit_bytes)
    run = host.start(launch_of("proc_flood.py", 200, tmp_path / "done"), tmp_path / "run")
    try:
        wait_for(lambda: (tmp_path / "done").exists(), 30)
        wait_for(lambda: read_all(host, run).endswith(b"the last line\n"), 60)
        raw = os.stat(f"/proc/{run.leader.pid}/fd/1")
        assert raw.st_nlink == 0
        assert raw.st_size > 200 << 20
        wait_for(lambda: os.stat(f"/proc/{run.leader.pid}/fd/1").st_blocks * 512 < 1 << 20)
    finally:
        host.end(run, grace_s=0)
    assert used_bytes(run.folder) <= limit_bytes
    text = read_all(host, run)
    assert text.startswith(b"INFO 08-26")
    assert b"bytes left out" in text or b"bytes of log dropped" in text


def test_a_server_that_empties_its_own_output_is_still_heard(tmp_path):
    host = LocalHost()
    script = "echo first; sleep 0.5; echo second > /dev/stderr; echo third; kill -STOP $$"
    launch = launch_of("proc_listen.py")
    launch = type(launch)(argv=("bash", "-c", script), env=launch.env, cwd=launch.cwd)
    run = host.start(launch, tmp_path / "run")
    try:
        wait_for(lambda: b"third" in host.read_log(run, 0)[0])
        assert host.read_log(run, 0)[0].split() == [b"first", b"second", b"third"]
        wait_for(lambda: [sample.state for sample in host.processes(run)] == ["T"])
    finally:
        host.end(run, grace_s=0)
    assert host.exit_of(run).signal == signal.SIGKILL


def test_offsets_stay_true_when_the_middle_is_dropped(tmp_path):
    log = RedactedLog(tmp_path, Scrubber(Redactor()), limit_bytes=8000)
    offset, seen = 0, []
    for number in range(2000):
        log.add(f"line {number:05d}\n".encode())
        if number == 300:
            text, offset = read_log(tmp_path, 0)
            seen = text.split(b"\n")
    assert seen[300] == b"line 00300"
    assert used_bytes(tmp_path) <= 8000
    text, end = read_log(tmp_path, offset)
    assert text.startswith(b"line 00301\n")
    while True:
        more, end = read_log(tmp_path, end)
        if not more:
            break
        text += more
    assert end == 2000 * len("line 00000\n")
    lines = text.decode().splitlines()
    assert lines[-1] == "line 01999"
    (note,) = [at for at, line in enumerate(lines) if "dropped" in line]
    dropped = int(lines[note].split()[1])
    assert int(lines[note + 1][5:]) - int(lines[note - 1][5:]) - 1 == dropped // len("line 00000\n")


@given(
    st.lists(
        st.sampled_from(
            [SECRET, "hf_" + "a1B2" * 8, "plain", "\n", "\r", "\x1b[1m", "é", "=", "x" * 40, " "]
        ),
        max_size=30,
    ),
    st.lists(st.integers(1, 400), max_size=10),
)
def test_wherever_chunks_are_cut_the_text_is_the_same_and_no_secret_is_in_it(pieces, cuts):
    raw = "".join(pieces).encode()
    whole = Scrubber(REDACTOR, longest_line=64)
    expected = whole.feed(raw) + whole.flush()
    scrubber, out, start = Scrubber(REDACTOR, longest_line=64), b"", 0
    for cut in sorted(cuts):
        out += scrubber.feed(raw[start:cut])
        start = max(start, cut)
    out += scrubber.feed(raw[start:]) + scrubber.flush()
    assert SECRET.encode() not in out
    assert out.split() == expected.split()


def test_a_secret_torn_by_the_longest_line_leaves_no_half():
    for length in range(40, 70):
        scrubber = Scrubber(REDACTOR, longest_line=64)
        out = scrubber.feed(b"." * length + SECRET.encode() + b"." * 40000) + scrubber.feed(b"\nnext\n")
        assert b"cAnary" not in out
        first, second = out.splitlines()
        assert first.endswith(b"[line cut]")
        assert len(first) <= 64 + len(b" [line cut]")
        assert second == b"next"


def test_a_key_block_is_hidden_line_by_line():
    scrubber = Scrubber(Redactor())
    out = b""
    for line in (
        "before",
        "-----BEGIN RSA PRIVATE KEY-----",
        "MIIEowIBAAKCAQEA",
        "c2VjcmV0",
        "-----END RSA PRIVATE KEY-----",
    ):
        out += scrubber.feed(line.encode() + b"\n")
    out += scrubber.feed(b"after: all\n")
    assert out.split(b"\n") == [b"before", *[b"[redacted]"] * 4, b"after: all", b""]


def test_progress_bars_become_lines_and_escapes_go():
    scrubber = Scrubber(Redactor())
    out = (
        scrubber.feed(b"\r 10%|#  |")
        + scrubber.feed(b"\r 20%|## |")
        + scrubber.feed(b"\r\nok\x1b]0;title\x07\x00\n")
    )
    assert out == b" 10%|#  |\n 20%|## |\nok\n"
