"""What the tests themselves promise each other."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from shakedown.cli.main import cli

STOPS = (signal.SIGTERM, signal.SIGHUP)


def test_a_command_inside_a_test_ignores_interrupts_at_its_end(tmp_path):
    CliRunner().invoke(cli, ["runs", "--ledger", str(tmp_path / "ledger.db")])
    assert [signal.getsignal(number) for number in STOPS] == [signal.SIG_IGN, signal.SIG_IGN]


def test_the_next_test_can_be_interrupted_again():
    assert signal.SIG_IGN not in [signal.getsignal(number) for number in STOPS]


def test_a_library_inside_a_test_leaves_a_variable():
    os.environ["LEFT_BY_A_TEST"] = "1"
    os.environ["PATH"] += ":/left"


def test_the_next_test_does_not_inherit_it():
    assert "LEFT_BY_A_TEST" not in os.environ
    assert not os.environ["PATH"].endswith(":/left")


def test_a_second_try_that_hangs_is_ended_as_the_first_was(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_hangs.py").write_text("import time\ndef test_hangs(): time.sleep(600)\n")
    words = ["-c", "/dev/null", "-q", "--timeout", "1", "--reruns", "1", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=45
    )
    assert "1 failed, 1 rerun" in done.stdout
