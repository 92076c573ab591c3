import subprocess
import sys
from pathlib import Path

PROGRAM = (sys.executable, "-m", "shakedown.cli.reference")


def test_the_written_reference_is_what_the_program_says():
    # A process of its own, as in `make docs`: click keeps the help option of a command's first use.
    said = subprocess.run(PROGRAM, capture_output=True, text=True, timeout=120, check=True).stdout
    written = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    assert written == said, "out of date: run `make docs`"
