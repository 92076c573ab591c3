from pathlib import Path

from shakedown.cli.reference import reference


def test_the_written_reference_is_what_the_program_says():
    written = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()
    assert written == reference(), "out of date: run `make docs`"
