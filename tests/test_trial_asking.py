"""What an answer, or none, means beside what the watch sees: the server is real, the watch hears a story."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from probe_servers import serving
from replaying import MIB, Script, process, stack, watch

from shakedown.core import Expectation, Judgement, Listener, Phase, Verdict, Wait
from shakedown.engines.generic import GENERIC
from shakedown.probe import Target
from shakedown.trial import asking
from shakedown.trial.asking import Asking
from shakedown.trial.attached import AttachedAsking
from shakedown.trial.marks import Stated
from shakedown.watch import Limits, Watcher

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
            self.judgement = assessment.judgement or self.asker.step(assessment, self.watcher)

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


def test_only_a_2xx_of_a_page_that_the_user_named_means_ready():
    page = {"health_path": "/ready", "health_is_named": True, "engine": "generic"}
    with serving("http_model.py", "--fault", "ready_page", **page) as target:
        story = loading(target)
        story.wait(lambda: story.asker.report)
        story.go_on(30)
    assert story.judgement.verdict is Verdict.SERVES
