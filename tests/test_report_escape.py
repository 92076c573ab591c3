"""Nothing a log or a name says can act on a terminal, in Markdown, in HTML or in a shell."""

import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from shakedown.report.escape import cell, clean, code, fenced, prose, storable
from shakedown.report.shell import command, quote

HOSTILE = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=40),
    st.text("`|*_[]()<>!#-1. \\&;@:/w\x1b[\n~$\"'", max_size=30),
)
HARMLESS_TOKENS = {"paragraph_open", "inline", "paragraph_close", "text", "code_inline"}


def is_harmless(line):
    return not any(unicodedata.category(char).startswith("C") for char in line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", "red and plain"),
        ("two\nlines\tand \u202eright to left\u2028", "two lines and right to left"),
        ("cut \x1b", "cut"),
        ("bytes \udcff \x9b31m", "bytes 31m"),
    ],
)
def test_escape_codes_and_invisible_characters_go(text, shown):
    assert clean(text) == shown


def test_long_lines_are_cut():
    assert clean("x" * 1000, 10) == "x" * 9 + "…"


@given(HOSTILE)
def test_markdown_shows_untrusted_text_as_it_is_and_nothing_else(text):
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for rendered in (prose(text), code(text)):
        assert is_harmless(rendered)
        tokens = parser.parse(f"**Said** {rendered}")
        kinds = {token.type for token in tokens} | {t.type for t in tokens[1].children or ()}
        assert kinds <= HARMLESS_TOKENS | {"strong_open", "strong_close"}
        shown = "".join(token.content for token in tokens[1].children or ())
        assert shown.removeprefix("Said").strip() == clean(text)


@given(HOSTILE)
def test_a_table_cell_stays_one_cell(text):
    table = f"| a | b |\n|---|---|\n| {cell(text)} | end |\n"
    tokens = MarkdownIt("commonmark").enable("table").parse(table)
    cells = [token.content for token in tokens if token.type == "inline"]
    assert cells[2:][1] == "end"


@given(st.lists(st.text("`~ab\n\x1b", max_size=12), max_size=5))
def test_nothing_ends_a_code_block_early(lines):
    tokens = MarkdownIt("commonmark").parse("\n".join(fenced(lines, "sh")))
    assert [token.type for token in tokens] == ["fence"]


@given(st.text(st.characters(exclude_categories=())))
def test_every_text_can_be_written_to_a_stream(text):
    storable(text).encode("utf-8")


tokens = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
tokens |= st.text("\udc80\udcff \n'\"\\$`!-=", max_size=8)


@settings(max_examples=50)
@given(st.lists(tokens, max_size=6), st.text("a \n'$\udc80", max_size=5))
def test_a_pasted_command_gives_the_shell_the_very_same_arguments(argv, value):
    line = "\n".join(command(["printf", "%s\\0", *argv], env=[("VLLM_X", value)]))
    shown = subprocess.run(["bash", "-c", line.encode("utf-8", "surrogateescape")], capture_output=True)
    assert shown.stderr == b""
    expected = [token.encode("utf-8", "surrogateescape") for token in argv] or [b""]
    assert shown.stdout.split(b"\0")[:-1] == expected


def test_variables_are_set_and_taken_away_for_the_command_alone():
    line = command(["sh", "-c", "echo $A-$B-$C"], env=[("A", "x y")], unset=["B"])
    env = {"A": "1", "B": "2", "C": "3", "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(["bash", "-c", "\n".join(line)], env=env, capture_output=True, text=True)
    assert shown.stdout == "x y--3\n"


def test_what_was_redacted_is_asked_for_by_name():
    argv = ["serve", "--api-key", "[redacted]", "--hf-token=[redacted]", "https://me:[redacted]@host/$x"]
    assert command(argv, env=[("HF_TOKEN", "[redacted]")], width=1000) == [
        'HF_TOKEN="${HF_TOKEN:?}" serve --api-key "${API_KEY:?}" "--hf-token=${HF_TOKEN:?}"'
        ' "https://me:${SECRET:?}@host/\\$x"'
    ]
    assert quote("plain") == "plain"


def test_a_long_command_is_broken_between_flags_and_fits():
    argv = ["vllm", "serve", "model", *(word for n in range(20) for word in (f"--some-flag-{n}", "value"))]
    lines = command(argv)
    assert all(len(line) <= 78 for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not any(line.split()[0] == "value" for line in lines)
