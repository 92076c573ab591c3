"""Recorded starts that the watch once judged wrongly, on machines made hard; each plays back right."""

import pytest
from replaying import MIB, Script, play, process, run_until, watch

from shakedown.core import Frame, StackDump, ThreadStack, Verdict, Wait
from shakedown.watch import State

# Healthy, and once called hung.
HEALTHY = {
    # 17 programs on two cores; the event loop waits while another thread, at 10 % of a core, makes tokens.
    "R01-transformers-starved": "transformers",
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_start_once_called_hung_is_not(name):
    assessment, _, _ = play({"id": name, "engine": HEALTHY[name], "verdict": "serves"}, step_s=0.5)
    assert assessment.judgement is None


LOOP = Frame(function="run_forever (asyncio", file="asyncio/base_events.py", line=7)


def server(*places: str, awake: bool) -> StackDump:
    """An event loop that waits, and a thread beside it."""
    frames = tuple(Frame(function=place, file="engine/model.py", line=1) for place in places)
    return StackDump(
        pid=1,
        threads=(
            ThreadStack(name="Thread-3", active=awake, frames=frames),
            ThreadStack(name="MainThread", active=False, frames=(LOOP,)),
        ),
    )


def still(at_s: float):
    return [process(rss_bytes=int(100 + 10 * min(at_s, 10)) * MIB, cpu_s=1 + 0.05 * at_s)]


def test_a_thread_at_work_that_is_elsewhere_at_every_look_is_progress():
    host = Script(still, stacks=lambda t, pid: server(f"layer {int(t)}", awake=True), seconds=280)
    assessment = run_until(host, watch(host), 270)
    assert assessment.judgement is None
    assert assessment.last_progress.signal == "stack"


def test_a_thread_that_wants_a_core_in_every_look_does_not_wait():
    host = Script(still, stacks=lambda t, pid: server("matmul", awake=True), seconds=280)
    assessment = run_until(host, watch(host), 270)
    assert (assessment.judgement, assessment.state) == (None, State.SUSPECT)
    assert assessment.note.startswith("slow, no progress seen")


def test_a_main_thread_in_a_lock_does_not_spin_while_another_thread_works():
    def native(at_s, pid):
        lock = Frame(function="PyThread_acquire_lock_timed", file="libpython3.11.so", line=0)
        matmul = Frame(function="brgemm_kernel", file="libtorch_cpu.so", line=0)
        main = ThreadStack(name="MainThread", active=False, frames=(lock,))
        return StackDump(pid=pid, threads=(ThreadStack(name="Thread-3", active=True, frames=(matmul,)), main))

    def busy(at_s):
        return [process(rss_bytes=int(100 + 10 * min(at_s, 10)) * MIB, cpu_s=at_s)]

    host = Script(busy, stacks=lambda t, pid: server("matmul", awake=True), native=native, seconds=280)
    assert run_until(host, watch(host), 270).judgement is None


def test_threads_that_only_wake_now_and_then_prove_nothing():
    """A helper that polls is caught awake in one look of four, always at the same place."""
    host = Script(still, stacks=lambda t, pid: server("poll", awake=int(t) % 20 == 0), seconds=280)
    judgement = run_until(host, watch(host), 120).judgement
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)
