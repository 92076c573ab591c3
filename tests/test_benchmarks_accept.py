"""The benchmark of planted faults: rows side by side, each written down whatever becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "accept_faults.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # three processes load torch


def faults(*argv: str) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, str(BENCHMARK), *argv]
    return subprocess.run(done, capture_output=True, text=True, timeout=280, check=False)


def test_rows_whose_target_is_not_there_say_so_and_are_tried_again(tmp_path):
    out = tmp_path / "rows.json"
    said = ("--gpu", "--engine", "vllm", "--python", sys.executable, "--model", str(tmp_path))
    rows = ("--only", "healthy, 1 draft", "ids+1", "--parallel", "2", "--out", str(out))
    for _ in range(2):
        done = faults(*said, "--drafter", str(tmp_path / "none"), *rows, "--seconds", "200")
        assert done.returncode == 0, done.stderr
        assert "0 of 2 right; healthy and blamed: []" in done.stdout
        assert "ids+1: {" in done.stderr  # it was run, not read
    found = json.loads(out.read_text())["engines"]["vllm"]["rows"]
    assert list(found) == ["ids+1", "healthy, 1 draft"]  # in the order of the table
    assert all(str(tmp_path) in row["why"][0] and row["blame"] == "no answer" for row in found.values())


def test_what_is_not_there_is_refused_in_a_line():
    for argv, words in (
        (("--only", "nothing"), "no such row: nothing"),
        (("--gpu", "--model", "x"), "say --python"),
    ):
        done = faults(*argv)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
