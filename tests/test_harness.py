"""What the tests themselves promise each other."""

import signal

from click.testing import CliRunner

from shakedown.cli.main import cli

STOPS = (signal.SIGTERM, signal.SIGHUP)


def test_a_command_inside_a_test_ignores_interrupts_at_its_end(tmp_path):
    CliRunner().invoke(cli, ["runs", "--ledger", str(tmp_path / "ledger.db")])
    assert [signal.getsignal(number) for number in STOPS] == [signal.SIG_IGN, signal.SIG_IGN]


def test_the_next_test_can_be_interrupted_again():
    assert signal.SIG_IGN not in [signal.getsignal(number) for number in STOPS]
