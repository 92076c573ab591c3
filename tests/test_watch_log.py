"""Which lines of a log show movement, and what the first exception was."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Exit
from shakedown.engines.generic import GENERIC
from shakedown.engines.sglang import SGLANG
from shakedown.engines.transformers import TRANSFORMERS
from shakedown.engines.vllm import VLLM
from shakedown.watch import log
from shakedown.watch.causes import ErrorFinder, describe_exit, fingerprint
from shakedown.watch.log import LINE_CHARS, LogReader, counter, template


def moved(engine, *lines: str) -> list[bool]:
    reader = LogReader(engine)
    return [line.moved for line in reader.feed("".join(f"{text}\n" for text in lines).encode(), 0.0)]


def first_cause(engine, text: str) -> str | None:
    reader, finder = LogReader(engine), ErrorFinder(engine)
    for line in reader.feed(text.encode() + b"\n", 1.0):
        finder.read(line)
    return finder.first.text if finder.first else None


def test_a_repeat_with_other_numbers_paths_and_names_is_no_progress():
    assert moved(
        GENERIC,
        "loaded '/a/b.bin' in 1.5 s at 0x7f01",
        "loaded '/c/d.bin' in 22.5 s at 0x9f22",
        "loaded it",
    ) == [True, False, True]


def test_a_counter_moves_only_above_its_highest():
    bar = "Loading shards: {}% Completed | {}/30"
    lines = [bar.format(n, m) for n, m in ((10, 3), (10, 3), (13, 4), (10, 3), (100, 30))]
    assert moved(GENERIC, *lines) == [True, False, True, False, True]


def test_counters_of_retries_and_waits_are_vain():
    assert counter("attempt 3/10 to connect") is None
    assert counter("waited 40% of the timeout") is None
    assert counter("3/30 shards") == 0.1
    assert counter("at 45% now") == 0.45
    assert counter("GET /v1/2/3 11/29/2026 speed 5/0") is None


def test_waiting_phrases_never_move():
    prefix = "(EngineCore pid=7) INFO 11-29 13:45:40 [shm.py:871] "
    text = "No available shared memory broadcast block found in 60 seconds."
    assert moved(VLLM, prefix + text) == [False]


def test_an_engine_that_says_it_stands_still_has_not_moved():
    stamp = "[2026-11-30 02:05:01] "
    alarm = "Scheduler watchdog timeout (self.watchdog_timeout=30.0, self.soft=True)"
    failed = "Pyspy failed (py-spy dump --native --pid 25317). Error: /bin/sh: 1: py-spy: not found"
    dump = "Pyspy dump for PID 25317 (py-spy dump --native --pid 25317):"
    assert moved(SGLANG, *(stamp + text for text in (alarm, failed, dump))) == [False] * 3
    assert moved(SGLANG, stamp + "Watchdog Scheduler initialized.") == [True]


def test_a_dump_of_stacks_has_not_moved():
    py_spy = ("Process 25317: sglang::scheduler", "Python v3.11.7 (/usr/bin/python3.11)")
    py_spy += ('Thread 25317 (idle): "MainThread"', "    wait (threading.py:324)")
    faulthandler = ("Thread 0x00007f2c (most recent call first):", '  File "a.py", line 7 in recv')
    for lines in (py_spy, faulthandler, ("Current thread 0x00007f2c (most recent call first):",)):
        assert moved(GENERIC, *lines) == [False] * len(lines)
    assert moved(GENERIC, "Process 3 of 4 has loaded", "  loaded (shard 7)") == [True, True]


def test_each_rank_has_its_own_templates():
    line = "(Worker_TP{} pid=1{}) INFO 11-29 13:45:40 [m.py:1] Starting to load model x..."
    assert moved(VLLM, line.format(0, 0), line.format(1, 1), line.format(1, 1)) == [True, True, False]


def test_lines_arrive_in_pieces_with_progress_bars_and_rubbish():
    reader = LogReader(GENERIC)
    assert reader.feed(b"half a li", 1.0) == ()
    lines = reader.feed(b"ne\r\n\x1b[31mred\x1b[0m\r 10%\r 20%\n\xff\xfe\n\n", 2.0)
    assert [line.text for line in lines] == ["half a line", "red", " 10%", " 20%", "\ufffd\ufffd"]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]


def test_a_flood_is_taken_in_portions_and_endless_lines_are_cut():
    reader = LogReader(GENERIC)
    first = reader.feed(b"x\n" * 10_000, 1.0)
    assert 0 < len(first) < 10_000
    assert reader.behind
    while reader.behind:
        reader.feed(b"", 1.0)
    (line,) = reader.feed(b"y" * 1_000_000 + b"\n", 2.0)
    assert len(line.text) == LINE_CHARS


def test_a_flood_of_long_lines_comes_out_whole(monkeypatch):
    """It is read while up to 8 MiB are pending, 4 MiB at a time, and told 4,000 lines at a time."""
    monkeypatch.setattr(log, "PENDING_BYTES", 8 << 10)
    monkeypatch.setattr(log, "LINES_PER_FEED", 4)
    reader, output = LogReader(GENERIC), b"".join(b"%04d %s\n" % (n, b"x" * 500) for n in range(200))
    offset, said = 0, []
    while offset < len(output) or reader.behind:
        data = output[offset : offset + (4 << 10)] if reader.hungry else b""
        offset += len(data)
        said += [line.text for line in reader.feed(data, 1.0)]
    assert said == output.decode().splitlines()


def test_hostile_lines_cost_linear_time():
    hostile = [
        "'" * 8000,
        "a/" * 4000,
        "1.1," * 2000,
        "(" * 8000,
        "x" * 8000 + ":",
        "[rank0" * 1300,
        " " * 8000,
    ]
    reader, finder = LogReader(VLLM), ErrorFinder(VLLM)
    started = time.process_time()
    for line in reader.feed(("\n".join(hostile * 20) + "\n").encode(), 1.0):
        finder.read(line)
    assert time.process_time() - started < 5.0


@given(st.text(max_size=300))
def test_templates_are_stable_and_never_fail(text):
    assert template(text) == template(text)
    counter(text)
    first_cause(SGLANG, text)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_do_not_make_templates(a, b):
    assert template(f"step {a} of job") == template(f"step {b} of job")


TRACEBACK = """Traceback (most recent call last):
  File "/x/lib/engine/load.py", line 12, in load_weights
    raise ValueError("no such weights")
engine.errors.WeightError: no such weights: /x/y
"""


def test_the_first_exception_is_the_cause_and_the_last_line_is_not():
    later = TRACEBACK.replace("WeightError: no such weights: /x/y", "CoreError: see root cause above")
    assert first_cause(GENERIC, TRACEBACK + later) == "WeightError: no such weights: /x/y"


def test_a_prefix_on_every_line_is_looked_through():
    prefix = "(EngineCore pid=9109) ERROR 11-29 14:14:45 [core.py:1510] "
    text = "".join(prefix + line + "\n" for line in TRACEBACK.splitlines())
    assert first_cause(VLLM, text) == "WeightError: no such weights: /x/y"


def test_tracebacks_of_two_processes_may_interleave():
    lines = []
    for row in TRACEBACK.splitlines():
        for pid, what in ((1, "first"), (2, "second")):
            lines.append(f"(Worker pid={pid}) ERROR 11-29 14:14:45 [core.py:1] {row.replace('such', what)}")
    assert first_cause(VLLM, "\n".join(lines)) == "WeightError: no first weights: /x/y"


def test_a_line_that_only_repeats_yields_to_any_other():
    text = "RuntimeError: Engine core initialization failed. See root cause above."
    assert first_cause(VLLM, text + "\n" + TRACEBACK) == "WeightError: no such weights: /x/y"


def test_a_handled_lookup_is_not_the_cause():
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in get\n    return table[name]\n'
        "KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    )
    assert first_cause(GENERIC, text + TRACEBACK) == "WeightError: no such weights: /x/y"


def test_an_exception_without_words_is_told_by_its_place():
    text = (
        'Traceback (most recent call last):\n  File "/p/runner.py", line 3, in step\n'
        "    assert x is not None\nAssertionError\n"
    )
    assert first_cause(GENERIC, text) == "AssertionError in step (runner.py): assert x is not None"


def test_an_exception_line_on_its_own_and_a_usage_error_count():
    assert first_cause(GENERIC, "fine\nOSError: [Errno 98] Address already in use") == (
        "OSError: [Errno 98] Address already in use"
    )
    assert first_cause(GENERIC, "serve.py: error: unrecognized arguments: --x") == (
        "error: unrecognized arguments: --x"
    )


REFUSED = ("serve.py: error: unrecognized arguments: --x", "Error: Missing argument 'MODEL'.")
TOOLS = (
    'ops.cu(12): error: identifier "foo" is undefined',
    "/tmp/jit/probe.cu:12:10: error: identifier 'foo' is undefined",
    "probe.c:3:1: error: unknown type name",
    "gcc: error: probe.c: No such file or directory",
    "ninja: error: loading 'build.ninja': No such file or directory",
    "Usage: POST /v1/chat/completions once ready",
    "usage: 12 of 40 GiB",
)


@pytest.mark.parametrize("engine", [GENERIC, VLLM, SGLANG, TRANSFORMERS])
def test_a_refused_command_line_is_a_death_and_what_a_compiler_says_is_none(engine):
    def fatal(*lines: str) -> bool:
        reader, finder = LogReader(engine), ErrorFinder(engine)
        for line in reader.feed("".join(f"{text}\n" for text in lines).encode(), 1.0):
            finder.read(line)
        return finder.fatal is not None

    assert [fatal("usage: serve.py [-h] [--port PORT]", text) for text in REFUSED] == [True, True]
    assert [fatal("Usage: serve [OPTIONS] MODEL", "Try 'serve --help'", text) for text in REFUSED] == [
        True
    ] * 2
    assert [text for text in TOOLS if fatal(text, "going on with the plain kernel")] == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "starting\ntool: cannot open /dev/x: Permission denied",
            "tool: cannot open /dev/x: Permission denied",
        ),
        ("Error: no such device\nbye", "Error: no such device"),
        ("cannot load a.so, going on\nfatal: no GPU found", "fatal: no GPU found"),
        ("usage: x [-h]\nx: unrecognized option --bar", "x: unrecognized option --bar"),
        ("2026-11-29 12:00:00 INFO a.cpp cannot find tuned kernels\nfinished with 0 errors, failed: 0", ""),
        ("all is well", ""),
    ],
)
def test_the_last_complaint_stands_in_where_no_exception_was_raised(lines, said):
    reader, finder = LogReader(GENERIC), ErrorFinder(GENERIC)
    for line in reader.feed(lines.encode() + b"\n", 1.0):
        finder.read(line)
    assert finder.first is None
    assert finder.last_words == said
    told = describe_exit(Exit(code=2, signal=None), finder.last_words)
    assert told.endswith(said or "named no cause")


def test_a_compile_error_is_told_in_the_words_of_the_compiler():
    """1,672 lines of warnings stood between the exception and the linker's reason."""
    log = (Path(__file__).parent / "logs" / "vllm-0.32.0-cpu-cache-full.log").read_text()
    warning = (
        "(Worker pid=3336) ERROR 11-29 18:17:20 [multiproc_executor.py:1063]   206 |   __m512i __Y = __Y;"
    )
    head, output, rest = log.partition("Output:\n")
    said = (
        "InductorError: CppCompileError: C++ compile error: /usr/bin/ld: final link failed: No space left on"
    )
    assert first_cause(VLLM, log) == f"{said} device"
    assert first_cause(VLLM, head + output + f"{warning}\n" * 1672 + rest) == f"{said} device"
    assert first_cause(VLLM, head) == "InductorError: CppCompileError: C++ compile error"


def test_a_traceback_caught_long_before_the_fatal_line_is_not_the_cause():
    reader, finder = LogReader(VLLM), ErrorFinder(VLLM)
    caught = TRACEBACK.replace("WeightError", "OptionalImportError")
    for at_s, text in ((1.0, caught), (60.0, "EngineCore failed to start.\n" + TRACEBACK)):
        for line in reader.feed(text.encode(), at_s):
            finder.read(line)
    assert finder.first.text == "WeightError: no such weights: /x/y"


def test_fingerprints_forget_numbers_and_places():
    assert fingerprint("ValueError: 12 heads in '/a/b' at 0x7f") == fingerprint(
        "ValueError: 9 heads in '/c/d/e' at 0x12"
    )
    assert fingerprint("ValueError: heads") != fingerprint("TypeError: heads")


def test_signals_are_named():
    assert describe_exit(Exit(code=None, signal=11)) == "killed by signal 11 (SIGSEGV)"
    assert describe_exit(Exit(code=3, signal=None)) == "exited with code 3 and named no cause"


LOGS = Path(__file__).parent / "logs"
SCHEDULER = "[2026-11-29 23:34:56 TP{}] Scheduler hit an exception: Traceback (most recent call last):"


def test_a_traceback_whose_first_line_alone_names_the_rank_is_read_to_its_end():
    """SGLang with more ranks than one: two H200, nine heads over two ranks."""
    text = (LOGS / "sglang-0.5.14-h200-tp2-crash.log").read_text()
    assert first_cause(SGLANG, text) == (
        "AssertionError in __init__ (llama.py): assert self.total_num_heads % tp_size == 0"
    )


def test_the_frames_of_two_ranks_are_told_apart():
    reader, finder = LogReader(SGLANG), ErrorFinder(SGLANG)
    text = "\n".join(
        [
            SCHEDULER.format(1),
            '  File "a.py", line 1, in load',
            "    read()",
            "ValueError: the second rank's",
            "",
            SCHEDULER.format(0),
            '  File "b.py", line 1, in meet',
            "RuntimeError: the first rank's",
            "[2026-11-29 23:34:57 TP0] Load weight end.",
            "",
        ]
    )
    for line in reader.feed(text.encode(), 1.0):
        finder.read(line)
    assert [(error.rank, error.text) for error in finder.errors] == [
        ("TP1", "ValueError: the second rank's"),
        ("TP0", "RuntimeError: the first rank's"),
    ]


def test_a_handled_lookup_of_a_rank_is_not_its_cause():
    text = "\n".join(
        [
            SCHEDULER.format(0),
            '  File "a.py", line 1, in find',
            "KeyError: 'x'",
            "",
            "During handling of the above exception, another exception occurred:",
            "",
            "Traceback (most recent call last):",
            '  File "a.py", line 9, in load',
            "ValueError: x is missing",
        ]
    )
    assert first_cause(SGLANG, text) == "ValueError: x is missing"
