"""What an answer, or none, means beside what the watch sees: the server is real, the watch hears a story."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from probe_servers import serving
from replaying import MIB, Script, process, stack, watch

from shakedown.core import Expectation, Judgement, Listener, LogprobStyle, Phase, Verdict, Wait
from shakedown.engines.generic import GENERIC
from shakedown.host.foreign import Listening
from shakedown.probe import Target
from shakedown.trial import asking
from shakedown.trial.asking import Asking
from shakedown.trial.attached import AttachedAsking
from shakedown.trial.marks import Stated
from shakedown.trial.seeking import Elsewhere, SeekingAsking, only_place
from shakedown.watch import Limits, State, Watcher

OURS = Listener(port=8000, pid=1, program="server", ours=True)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "CANARY_S", 1.0)
    monkeypatch.setattr(asking, "READY_LOOK_S", 1.0)
    monkeypatch.setattr(asking, "READY_PAUSE_S", 0.05)


def still(at_s: float):
    return [process(rss_bytes=int(100 + 10 * min(at_s, 10)) * MIB)]


def stuck(at_s: float, pid: int):
    return stack(pid, "wait_for_peer engine/store.py:10", "main engine/main.py:3")


class Story:
    """A scripted launch, asked for real: the clock of the watch moves only when it is told to."""

    def __init__(self, host: Script, asker: Asking, limits: Limits | None = None, engine=GENERIC) -> None:
        self.host, self.asker = host, asker
        self.watcher: Watcher = watch(host, engine=engine, limits=limits, port=8000)
        self.judgement: Judgement | None = None

    def go_on(self, seconds: float) -> None:
        """Until something is judged or that much of the script has passed."""
        until = self.host.clock_s() + seconds
        while self.judgement is None and self.host.clock_s() < until:
            self.host.advance(0.5)
            assessment = self.watcher.step()
            seen = assessment.judgement
            if seen is not None and (seen := self.asker.doubt(seen, assessment, self.watcher)) is None:
                self.watcher.take_back()
                assessment = replace(assessment, judgement=None, state=State.SUSPECT)
            self.judgement = seen or self.asker.step(assessment, self.watcher)

    def wait(self, condition: Callable[[], object]) -> None:
        """For the thread that asks, the clock of the script standing still."""
        until = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.fixture
def silent() -> Iterator[Target]:
    """Healthy by its own word, and it answers no request."""
    with serving("http_model.py", "--fault", "silent") as target:
        yield target


def asked_and_cut(host: Script, target: Target, limits: Limits) -> Story:
    asker = Asking(target, None, lambda: host.clock_s() - host.run.started_s)
    story = Story(host, asker, limits)
    story.go_on(12)
    story.wait(lambda: asker._answering)
    story.go_on(60)
    story.wait(lambda: asker.report is not None)
    return story


PATIENT = Limits(learnt={Phase.SERVING: 90.0})


def test_a_hung_server_that_takes_notice_of_our_cut_is_still_hung(silent):
    """A phase whose healthy silences are long: nothing is decided yet when the canary is cut."""
    places = {True: "on_disconnect engine/http.py:4", False: "wait_for_peer engine/store.py:10"}
    host = Script(
        still,
        lines=[(72.6, "Request is disconnected from the client side. Abort request 7f")],
        stacks=lambda t, pid: stack(pid, places[t > 72.6]),
        listener=OURS,
    )
    story = asked_and_cut(host, silent, PATIENT)
    story.go_on(100)
    assert (story.judgement.verdict, story.judgement.wait) == (Verdict.HUNG, Wait.WAITING)


def test_a_server_that_moves_until_it_is_cut_is_slow(silent):
    host = Script(lambda t: [process(minor_faults=int(22_000 * min(t, 72)))], listener=OURS)
    story = asked_and_cut(host, silent, PATIENT)
    story.go_on(100)
    assert story.judgement.verdict is Verdict.SLOW


def test_a_server_that_goes_on_by_itself_after_the_cut_is_slow(silent):
    def later(at_s: float):
        return [process(minor_faults=int(22_000 * max(0, at_s - 100)))]

    story = asked_and_cut(Script(later, stacks=stuck, listener=OURS), silent, PATIENT)
    story.go_on(100)
    assert story.judgement.verdict is Verdict.SLOW


READY = [(5.0, "INFO:     Application startup complete.")]


def ready(target: Target, launch=still, attached: bool = False) -> Story:
    """Its log says that it is ready, half a minute before the story goes on."""
    host = Script(launch, lines=READY, stacks=stuck, listener=OURS)

    def clock() -> float:
        return host.clock_s() - host.run.started_s

    asker = AttachedAsking(target, None, clock, up=False) if attached else Asking(target, None, clock)
    story = Story(host, asker)
    story.go_on(60)
    return story


@pytest.mark.parametrize("attached", [False, True])
def test_a_server_that_is_ready_by_its_log_and_whose_health_page_hangs_is_asked(attached):
    with serving("http_raw.py", "hold") as target:
        story = ready(target, attached=attached)
        story.wait(lambda: story.asker._answering)
        story.go_on(60)
    assert (story.judgement.verdict, story.judgement.wait) == (Verdict.HUNG, Wait.WAITING)


def test_a_server_whose_health_page_says_503_for_ever_is_asked_all_the_same():
    with serving("http_model.py", "--fault", "starting") as target:
        story = ready(target)
        story.wait(lambda: story.asker.report)
        story.go_on(60)
    assert story.judgement.verdict is Verdict.SERVES


def test_a_running_server_whose_health_page_says_503_is_asked_and_not_called_hung():
    host = Script(lambda t: [process()], stacks=stuck, listener=OURS)
    with serving("http_model.py", "--fault", "starting") as target:
        asker = AttachedAsking(target, None, lambda: host.clock_s() - host.run.started_s, up=True)
        story = Story(host, asker)
        story.watcher.enter(Phase.READY)
        story.go_on(32)
        story.wait(lambda: asker.report)
        story.go_on(60)
    assert story.judgement.verdict is Verdict.SERVES


def test_a_server_that_says_503_and_still_moves_is_waited_for():
    with serving("http_model.py", "--fault", "starting") as target:
        story = ready(target, lambda t: [process(minor_faults=int(22_000 * t))])
        for _ in range(2):
            seen = story.asker._seen
            story.wait(lambda seen=seen: story.asker._seen is not seen)
    assert (story.judgement, story.asker._answering) == (None, False)


def bad(*_: object, **__: object):
    return float("1e")


def test_an_answer_that_we_cannot_read_is_told_and_no_hang(monkeypatch):
    monkeypatch.setattr(asking, "check", bad)
    with serving("http_model.py") as target:
        story = ready(target)
        story.wait(lambda: story.asker.report)
        story.go_on(60)
    assert story.judgement.verdict is Verdict.UNDECIDED
    assert "could not convert string to float: '1e'" in story.judgement.cause
    assert any("in bad (test_trial_asking.py" in it.text for it in story.judgement.evidence)


def test_a_mark_that_we_cannot_read_is_not_measured(monkeypatch):
    monkeypatch.setattr(asking, "measure", bad)
    stated = Stated(expectations=(Expectation.read("tokens_per_s >= 1"),))
    host = Script(still, listener=OURS)
    with serving("http_model.py") as target:
        asker = Asking(target, None, lambda: host.clock_s() - host.run.started_s, stated)
        story = Story(host, asker)
        story.go_on(12)
        story.wait(lambda: asker.report)
        story.go_on(60)
    assert story.judgement.verdict is Verdict.UNDECIDED
    assert "tokens_per_s could not be measured: ValueError" in story.judgement.cause


def loading(target: Target, launch=lambda t: [process(minor_faults=int(22_000 * t))], lines=()) -> Story:
    """It listens, and nothing has said that it is ready; the story is told until it is asked."""
    host = Script(launch, lines=lines, stacks=stuck, listener=OURS)
    story = Story(host, Asking(target, None, lambda: host.clock_s() - host.run.started_s))
    story.go_on(12)
    return story


@pytest.mark.parametrize("fault", ["loads", "no_routes"])
def test_a_server_that_listens_while_it_loads_is_asked_again(fault):
    with serving("http_model.py", "--fault", fault, health_path=None, engine="generic") as target:
        story = loading(target)
        story.wait(lambda: story.asker.report)
        assert story.asker.early is not None
        story.go_on(30)
    assert story.judgement.verdict is Verdict.SERVES


def test_a_server_that_still_loads_was_told_no_request_and_goes_on_being_watched():
    with serving("http_model.py", "--fault", "loads_for_ever", health_path=None, engine="generic") as target:
        story = loading(target)
        story.wait(lambda: story.asker.early)
        story.go_on(60)
        assert (story.judgement, story.asker.report) == (None, None)
        assert {span.phase for span in story.watcher.step().phases} == {Phase.IMPORT}


@pytest.mark.parametrize("says_ready", [False, True])
def test_one_that_does_not_move_or_has_said_ready_is_not_waited_for(says_ready):
    lines = READY if says_ready else ()
    with serving("http_model.py", "--fault", "loads_for_ever", health_path=None, engine="generic") as target:
        story = loading(target, still, lines)
        story.go_on(0 if says_ready else 33)
        story.wait(lambda: story.asker.report)
        story.go_on(60)
    assert story.judgement.verdict is Verdict.UNDECIDED
    assert "not ready (503): Loading model" in story.judgement.cause


def test_a_server_of_another_kind_that_always_moves_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(asking, "NO_ROUTES_S", 20.0)
    with serving("http_model.py", "--fault", "no_api", health_path=None, engine="generic") as target:
        story = loading(target)
        story.wait(lambda: story.asker.early)
        story.go_on(30)
        story.wait(lambda: story.asker.report)
        story.go_on(30)
    assert story.judgement.verdict is Verdict.UNDECIDED
    assert "no OpenAI-style API" in story.judgement.cause


def test_only_a_2xx_of_a_page_that_the_user_named_means_ready():
    page = {"health_path": "/ready", "health_is_named": True, "engine": "generic"}
    with serving("http_model.py", "--fault", "ready_page", **page) as target:
        story = loading(target)
        story.wait(lambda: story.asker.report)
        story.go_on(30)
    assert story.judgement.verdict is Verdict.SERVES


def place(target: Target, address: str = "127.0.0.1") -> Listening:
    return Listening(port=urlsplit(target.base_url).port or 0, address=address, pid=1)


def seeking(
    target: Target, *found: Listening, asked: Target | None = None, ready_log: str | None = None, lines=()
) -> Story:
    """A launch that does nothing more; nobody has said where it listens, or `asked` is the wrong place."""
    host = Script(still, lines=lines, stacks=stuck, listener=OURS if asked else None)
    elsewhere = Elsewhere(
        ports=lambda tree: found, at=lambda it: target, port=8000 if asked else None, idles=True
    )
    asker = SeekingAsking(
        asked,
        ready_log,
        lambda: host.clock_s() - host.run.started_s,
        elsewhere=elsewhere,
        processes=lambda: (host.run.leader,),
    )
    story = Story(host, asker)
    story.go_on(12)
    if asked:
        story.wait(lambda: asker._seen)
    while story.judgement is None and asker._kept is None:
        story.go_on(1)
    if asker._insists():
        story.wait(lambda: asker._answering)
    elif asker._target is target:
        story.wait(lambda: asker._seen and asker._looked_at is target)
    return story


def told(story: Story, silent: bool = False) -> Judgement:
    """`silent`: its request is left unanswered while the clock of the story goes on."""
    if story.asker._answering and not silent:
        story.wait(lambda: story.asker.report)
    story.go_on(100)
    return story.judgement


INIT = "init_process_group torch/distributed/distributed_c10d.py:1700"
UNKNOWN = {"health_path": None, "engine": "generic"}


def test_an_idle_server_on_a_port_that_nobody_told_is_asked_there():
    with serving("http_model.py", **UNKNOWN) as target:
        assert told(seeking(target, place(target))).verdict is Verdict.SERVES


def test_an_idle_server_that_listens_elsewhere_than_it_was_told_is_asked_there():
    nowhere = Target(
        base_url="http://127.0.0.1:9", model=None, api_key=None, logprobs=LogprobStyle.ECHO, **UNKNOWN
    )
    with serving("http_model.py", **UNKNOWN) as target:
        assert told(seeking(target, place(target), asked=nowhere)).verdict is Verdict.SERVES


def test_a_line_that_says_ready_enters_ready_and_finds_the_port():
    with serving("http_model.py", **UNKNOWN) as target:
        judgement = told(seeking(target, place(target), ready_log="is up", lines=[(5.0, "it is up")]))
    assert judgement.verdict is Verdict.SERVES
    ready = [span.started_s for span in judgement.phases if span.phase is Phase.READY]
    assert ready[0] < 10


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("http_raw.py", ("hold",)),
        ("http_raw.py", ("close_at_once",)),
        ("http_model.py", ("--fault", "loads_for_ever")),
        ("http_model.py", ("--fault", "silent")),
    ],
)
def test_a_listener_that_gives_no_answer_is_hung(program, arguments):
    with serving(program, *arguments, **UNKNOWN) as target:
        judgement = told(seeking(target, place(target)), silent="silent" in arguments)
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)


def test_of_several_ports_none_is_asked_and_none_is_called_hung():
    with serving("http_model.py", "--fault", "die", **UNKNOWN) as target:
        judgement = told(seeking(target, place(target), Listening(port=29500, address="::", pid=1)))
    assert judgement.verdict is Verdict.UNDECIDED
    assert "it listens on ports" in judgement.cause
    assert "29500" in judgement.cause
    assert "--port N" in judgement.would_change


def test_a_start_that_its_stacks_show_is_hung_whatever_listens_in_it(monkeypatch):
    """A rendezvous and a store, in which a rank waits for the others."""
    monkeypatch.setitem(globals(), "stuck", lambda t, pid: stack(pid, INIT, "main run.py:3"))
    stores = [Listening(port=port, address="::", pid=1) for port in (29500, 29501)]
    with serving("http_model.py", "--fault", "die", **UNKNOWN) as target:
        judgement = told(seeking(target, *stores))
    assert (judgement.verdict, judgement.wait, judgement.phase) == (
        Verdict.HUNG,
        Wait.WAITING,
        Phase.DIST_INIT,
    )


def test_one_that_listens_nowhere_is_hung():
    with serving("http_model.py", **UNKNOWN) as target:
        judgement = told(seeking(target))
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)


def test_a_page_that_never_says_ready_may_not_exist():
    """The user named it; the server has long been idle, and answers."""
    page = {"health_path": "/healthy", "health_is_named": True, "engine": "generic"}
    with serving("http_model.py", **page) as target:
        assert told(seeking(target, asked=target)).verdict is Verdict.SERVES


def test_the_port_that_it_was_told_is_the_servers_whatever_else_is_open():
    found = [
        Listening(port=8000, address="::", pid=1),
        Listening(port=8000, address="0.0.0.0", pid=1),
        Listening(port=29500, address="127.0.0.1", pid=2),
    ]
    assert only_place(found, 8000) == found[1]
    assert only_place(found[:1], 8000) == only_place(found[:1], None) == found[0]
    assert only_place(found, None) is None
