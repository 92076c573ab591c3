"""A page stands alone, is well formed, and lets nothing that a log or a name says act."""

import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from report_samples import CAUSE, FACTORS, HUNG, RUN, SEARCH, SERVES, TRIALS, search, span, trial

from shakedown.core import Ended, Evidence, Phase, RecordState, SearchRecord, Suspect, TrialRecord
from shakedown.report.excerpt import HEAD_LINES, TAIL_LINES, LogExcerpt
from shakedown.report.html import isolate_page, run_page
from shakedown.report.markup import tag
from shakedown.report.style import CSS
from shakedown.report.timeline import rank_rows, timeline

NEVER_CLOSED = {"meta", "br"}
LOADS = {
    "script",
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "form",
    "base",
    "image",
    "use",
    "foreignObject",
}
HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b[0m \u202egnp.exe\"' onload=x <img src=//evil.test>&lt;"
SAID = (
    "&lt;script&gt;alert(1)&lt;/script&gt;red gnp.exe&quot;&#x27; onload=x"
    " &lt;img src=//evil.test&gt;&amp;lt;"
)


class Page(HTMLParser):
    """Everything in a page by element; fails where an element is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in NEVER_CLOSED:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [attrs[attribute] for _, attrs in self.elements if attrs.get(attribute)]

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def assert_stands_alone(text: str) -> Page:
    page = Page(text)
    assert not LOADS & {name for name, _ in page.elements}
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "style", "xlink:href")]
    assert all(link.startswith("#") for link in page.values("href"))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page.values("href")} <= set(ids)
    assert set(page.values("aria-labelledby")) <= set(ids)
    assert not re.search(r"url\((?!#open\))|@import|@font-face", text)
    assert ("html", {"lang": "en"}) in page.elements
    assert [name for name, _ in page.elements].count("h1") == 1
    return page


LOG = LogExcerpt.of(b"INFO one\nWARNING two <b>\n", b"", 25)
LOGS = {each.id: LOG for each in TRIALS}


def test_a_search_shows_cause_certificate_command_trials_and_what_is_not_known():
    page = assert_stands_alone(isolate_page(SEARCH, TRIALS, LOGS))
    words = page.words()
    assert words.index("Cause proven") < words.index("Working command") < words.index("Hypotheses")
    for said in ("the cause alone fails the same way", "99.0%", "4 launches, 3 min 28 s"):
        assert said in words
    for each in TRIALS:
        assert each.id in words
        assert each.experiment.reason in words
    assert "only vllm 0.32.0 on box was tried" in words
    assert "HF_TOKEN" in words
    assert "WARNING two <b>" in words
    assert words.count("without nodes it serves") == 1


def test_the_working_command_is_a_block_of_its_own_that_one_click_selects():
    text = isolate_page(SEARCH, TRIALS)
    block = re.search(r'<pre class="copy good"[^>]*><code>(.*?)</code></pre>', text, re.S)
    assert block
    assert "--nnodes" not in block[1]
    assert "${API_KEY:?}" in block[1]
    assert "user-select:all" in text
    assert re.search(r"<del><code>--nnodes 2 .*--pipeline-parallel-size 2</code></del>", text)


def test_a_run_shows_its_phases_its_suspect_and_its_log():
    page = assert_stands_alone(run_page(RUN, LOG))
    words = page.words()
    assert "hung (waiting) in dist_init after 61 s" in words
    assert "VLLM::EngineCore (pid 4711) at init_process_group" in words
    assert "3 observations" in words
    assert "shakedown run --" in words


@pytest.mark.parametrize("ended", list(Ended))
def test_every_end_of_a_search_is_a_page(ended):
    assert_stands_alone(isolate_page(search(ended=ended, causes=(CAUSE,)), TRIALS))
    assert_stands_alone(isolate_page(search(ended=ended, causes=(), suspects=(("nodes", 0.7),)), TRIALS))


def test_what_is_not_finished_is_a_page():
    assert_stands_alone(run_page(replace(RUN, judgement=None, seconds=None, state=RecordState.INTERRUPTED)))
    unfinished = replace(SEARCH, conclusion=None, seconds=None, state=RecordState.INTERRUPTED)
    assert "no conclusion yet" in assert_stands_alone(isolate_page(unfinished, ())).words()


def test_hostile_text_is_shown_and_never_acts():
    judgement = replace(
        HUNG,
        cause=HOSTILE,
        fingerprint=f"{HOSTILE} < {HOSTILE}",
        would_change=HOSTILE,
        suspect=Suspect(pid=1, name=HOSTILE, frame=HOSTILE, wchan=HOSTILE),
        evidence=(Evidence(kind=HOSTILE, text=HOSTILE, at_s=1.0),),
        phases=(span(Phase.IMPORT, 0.0, None, rank=HOSTILE),),
    )
    fields = {"argv": (HOSTILE,), "env": ((HOSTILE, HOSTILE),), "facts": ((HOSTILE, HOSTILE),), "id": HOSTILE}
    bad = replace(RUN, judgement=judgement, engine=HOSTILE, started_at=HOSTILE, cwd=HOSTILE, **fields)
    log = LogExcerpt.of(HOSTILE.encode(), b"", 1)
    factors = tuple(replace(factor, name=HOSTILE, was=HOSTILE, now=HOSTILE) for factor in FACTORS[:1])
    found = search(failing=judgement, cleared=(HOSTILE,), note=HOSTILE, other_failures=((HOSTILE, HOSTILE),))
    found = replace(found, factors=factors, argv=(HOSTILE,), secrets=((HOSTILE, ""),))
    for text in (run_page(bad, log), isolate_page(found, [bad], {HOSTILE: log})):
        assert_stands_alone(text)
        assert SAID in text
        assert "<script" not in text
        assert not any(unicodedata.category(char).startswith("C") for char in text.replace("\n", ""))


st.register_type_strategy(str, st.text(st.characters(exclude_categories=()), max_size=6))
st.register_type_strategy(Path, st.builds(Path, st.text("ab/ \udc80", max_size=6)))


@settings(
    max_examples=20,
    suppress_health_check=list(HealthCheck),
    phases=[Stage.explicit, Stage.reuse, Stage.generate],  # shrinking such large records takes minutes
    report_multiple_bugs=False,
)
@given(st.from_type(SearchRecord), st.lists(st.from_type(TrialRecord), max_size=2))
def test_every_record_is_a_page(found, trials):
    assert_stands_alone(isolate_page(found, trials)).close()
    for each in trials:
        assert_stands_alone(run_page(each)).close()


def test_attributes_are_escaped():
    assert tag("a", "<", href='"><b>', class_=None) == '<a href="&quot;&gt;&lt;b&gt;">&lt;</a>'


def test_a_phase_without_an_end_is_hatched_up_to_the_end_of_the_launch():
    rows = rank_rows(HUNG, 61.0)
    bars = {bar.phase: bar for bar in rows[0].bars}
    assert (bars[Phase.DIST_INIT].started_s, bars[Phase.DIST_INIT].ended_s) == (13.0, 61.0)
    assert [bar.open for bar in rows[0].bars] == [False, False, True]
    drawn = timeline(rows)
    assert drawn.count('fill="url(#open)"') == 3  # the launch, its rank, and what the sign means
    assert "last hard progress" in drawn


def test_every_rank_has_its_line_and_the_launch_as_a_whole_the_first():
    rows = rank_rows(SERVES, 35.0)
    assert [row.name for row in rows] == ["the launch", "0", "1"]
    assert [(bar.phase, bar.ended_s) for bar in rows[0].bars][-1] == (Phase.SERVING, 35.0)
    assert rows[0].mark_s is None
    odd = replace(
        SERVES, phases=(span(Phase.IMPORT, float("nan"), float("inf")), span(Phase.BIND, -5.0, -9.0))
    )
    timeline(rank_rows(odd, float("nan")))
    assert timeline([]) is None


def test_of_a_long_log_both_ends_are_kept_and_what_lies_between_is_counted():
    log = LogExcerpt.of("".join(f"line {n}\n" for n in range(500)).encode(), b"", 1)
    assert (len(log.head), len(log.tail)) == (HEAD_LINES, TAIL_LINES)
    assert (log.head[0], log.tail[-1]) == ("line 0", "line 499")
    assert log.left_out == f"{500 - HEAD_LINES - TAIL_LINES} lines left out"
    huge = LogExcerpt.of(b"first\nsecond", b"ut in the middle\nlast\n", 2_000_000_000)
    assert huge.lines == ("first", "second", "… the middle of 2000.0 MB left out …", "last")


def test_a_log_is_shown_without_escape_codes_and_secrets_and_of_a_bar_only_its_last_state():
    raw = b"\x1b[31m  red\x1b[0m\n 10%|# |\r100%|##|\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123\n\xff\xfe\n"
    log = LogExcerpt.of(raw, b"", len(raw))
    assert log.head[:2] == ("  red", "100%|##|")
    assert "hf_abc" not in "".join(log.head)
    assert LogExcerpt.of(b"", b"", 0).lines == ("",)


VLLM_ARGUMENTS = (
    "(APIServer pid=9) INFO [api_utils.py:286] non-default args: {'host': '127.0.0.1', 'nnodes': 2,"
    " 'served_model_name': ['a', 'b, c=d'], 'compilation_config': {'mode': 0, 'sizes': [1, 2]},"
    " 'enforce_eager': True}"
)
SGLANG_ARGUMENTS = (
    "[2026-11-29 14:43:34] server_args=ServerArgs(model_path='./model', mem_fraction_static=0.7,"
    " cuda_graph_bs=[1, 2], json_model_override_args='{}', it=\"it's, x=1\", port=30000)"
)


@pytest.mark.parametrize(
    ("line", "resolved"),
    [
        (
            VLLM_ARGUMENTS,
            {
                "host": "'127.0.0.1'",
                "nnodes": "2",
                "served_model_name": "['a', 'b, c=d']",
                "compilation_config": "{'mode': 0, 'sizes': [1, 2]}",
                "enforce_eager": "True",
            },
        ),
        (
            SGLANG_ARGUMENTS,
            {
                "model_path": "'./model'",
                "mem_fraction_static": "0.7",
                "cuda_graph_bs": "[1, 2]",
                "json_model_override_args": "'{}'",
                "it": '"it\'s, x=1"',
                "port": "30000",
            },
        ),
        ("INFO nothing of the kind", {}),
    ],
)
def test_the_arguments_an_engine_resolved_are_read_from_its_log(line, resolved):
    raw = f"INFO one\n{line}\nlast\n".encode()
    assert dict(LogExcerpt.of(raw, b"", len(raw)).resolved) == resolved


def test_a_run_of_many_ranks_stays_small():
    phases = tuple(span(Phase.IMPORT, 0.0, 9.0, rank=f"Worker_TP{n}") for n in range(500))
    many = replace(SERVES, phases=(*phases, span(Phase.SERVING, 9.0, None)))
    text = run_page(trial("t1", judgement=many))
    assert "and 438 more in the ledger" in text


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        wide = colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])
        parts = [int(wide[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_stands_out_from_its_ground(theme):
    colours = dict(re.findall(r"--([\w-]+):(#\w+)", CSS.split("prefers-color-scheme:dark")[theme]))
    pairs = [(text, ground) for text in ("fg", "muted", "link") for ground in ("bg", "soft")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "bad", "warn", "odd", "none")]
    pairs += [("fg", bar) for bar in ("prepare", "ranks", "load", "build", "up")]
    faint = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert min(faint.values()) >= 4.5, {pair: ratio for pair, ratio in faint.items() if ratio < 4.5}
