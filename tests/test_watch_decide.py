"""Deciding is pure: properties that hold for every situation, and the rules one by one."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Exit, Frame, Phase, Signature, Verdict, Wait
from shakedown.watch.causes import LoggedError
from shakedown.watch.decide import decide
from shakedown.watch.hang import elect
from shakedown.watch.proc import Vanished
from shakedown.watch.situation import (
    HARD_LIMITS_S,
    Limits,
    LockWait,
    ProcessView,
    Situation,
    State,
    budget,
    learn,
    silence,
)

LIMITS = Limits()
WAITING = (Frame(function="wait_for_peer", file="engine/store.py", line=7),)
LOADING = (Frame(function="read_shard", file="engine/load.py", line=9),)

frames = st.sampled_from([(), WAITING, LOADING])
views = st.builds(
    ProcessView,
    pid=st.integers(1, 9),
    ppid=st.integers(0, 9),
    name=st.sampled_from(["server", "worker"]),
    state=st.sampled_from("SRTDZ"),
    state_s=st.floats(0, 300),
    state_looks=st.integers(1, 30),
    wchan=st.sampled_from(["", "futex_wait", "request_wait_answer"]),
    cpu_share=st.one_of(st.none(), st.floats(0, 2)),
    frames=frames,
    tracker=st.booleans(),
    waits=st.booleans(),
    meets=st.booleans(),
    computes=st.booleans(),
    spins=st.booleans(),
    gpu_busy=st.booleans(),
    lock=st.none() | st.builds(LockWait, pid=st.none() | st.integers(1, 9), idle_s=st.floats(0, 60)),
)
errors = st.builds(
    LoggedError,
    text=st.sampled_from(["ValueError: no", "[Errno 98] Address already in use"]),
    at_s=st.floats(0, 500),
    pid=st.one_of(st.none(), st.integers(1, 9)),
    rank=st.just(""),
    strength=st.integers(0, 2),
    number=st.integers(1, 100),
)
situations = st.builds(
    Situation,
    now_s=st.floats(0, 5000),
    phase=st.sampled_from(Phase),
    quiet_s=st.floats(0, 5000),
    budget_s=st.floats(15, 200),
    processes=st.lists(views, max_size=5).map(tuple),
    rounds=st.integers(0, 20),
    rounds_over=st.integers(0, 20),
    rounds_span_s=st.floats(0, 300),
    met_expected_s=st.floats(0, 30),
    error=st.one_of(st.none(), errors),
    last_error_s=st.one_of(st.none(), st.floats(0, 500)),
    fatal=st.one_of(st.none(), errors),
    exit=st.one_of(st.none(), st.builds(Exit, code=st.integers(0, 3), signal=st.none())),
    exit_age_s=st.floats(0, 20),
    vanished=st.lists(
        st.builds(
            Vanished,
            pid=st.integers(1, 9),
            name=st.just("worker"),
            at_s=st.floats(0, 500),
            lived_s=st.floats(0, 60),
        ),
        max_size=3,
    ).map(tuple),
    port_is_foreign=st.booleans(),
)


@given(situations)
def test_equal_situations_get_equal_decisions(s):
    assert decide(s, LIMITS) == decide(replace(s), LIMITS)


@given(situations)
def test_what_is_final_has_a_verdict_and_nothing_else_has(s):
    decision = decide(s, LIMITS)
    assert (decision.state is State.FINAL) == (decision.verdict is not None)
    if decision.verdict is not None:
        assert decision.cause
        assert decision.fingerprint
        assert (decision.verdict is Verdict.HUNG) == (decision.wait is not None)


@given(situations)
def test_no_hang_is_said_within_the_budget_unless_stopped_or_blocked_for_good(s):
    decision = decide(replace(s, quiet_s=min(s.quiet_s, s.budget_s * 0.99)), LIMITS)
    if decision.verdict is Verdict.HUNG:
        stuck = decision.wait is Wait.STOPPED
        assert stuck or any(p.state == "D" and p.state_s >= LIMITS.blocked_s for p in s.processes)


@given(situations)
def test_progress_never_turns_a_moving_launch_into_a_hung_one(s):
    before = decide(s, LIMITS)
    fresh = replace(s, quiet_s=0.0, rounds=0, rounds_over=0, rounds_span_s=0.0, met_expected_s=0.0)
    after = decide(fresh, LIMITS)
    if before.verdict is None:
        assert after.verdict is not Verdict.HUNG
    if after.verdict is Verdict.HUNG:
        assert after.wait is Wait.STOPPED


@given(situations)
def test_a_suspect_alone_never_ends_a_launch(s):
    no_rounds = replace(s, rounds_over=0, exit=None, fatal=None, met_expected_s=0.0)
    decision = decide(no_rounds, LIMITS)
    if decision.verdict is not None:
        assert decision.wait in {Wait.STOPPED, Wait.BLOCKED_IO}


@given(situations)
def test_waiting_is_never_said_while_a_process_burns_cpu(s):
    decision = decide(s, LIMITS)
    if decision.wait is Wait.WAITING:
        assert all(p.tracker or not p.busy for p in s.processes)


@given(situations)
def test_a_long_computation_is_never_hung_before_its_hard_limit(s):
    computing = ProcessView(
        pid=1, ppid=0, name="worker", state="R", state_s=1, wchan="", cpu_share=1.0, computes=True
    )
    decision = decide(replace(s, processes=(computing,), quiet_s=min(s.quiet_s, 2300.0)), LIMITS)
    assert decision.verdict is not Verdict.HUNG


@given(situations)
def test_a_fatal_line_that_was_outlived_and_took_nobody_along_ends_nothing(s):
    outlived = replace(
        s,
        now_s=900.0,
        quiet_s=s.budget_s + 1,
        rounds_over=5,
        processes=s.processes or (asleep(1),),
        fatal=s.fatal or error("worker failed"),
        error=None,
        exit=None,
        vanished=(),
    )
    assert decide(outlived, LIMITS).verdict is not Verdict.CRASHED


@given(situations)
def test_a_launch_of_which_nothing_can_be_read_is_undecided_in_the_end_and_not_before(s):
    unseen = replace(s, processes=(), exit=None, fatal=None, error=None, rounds_over=9, met_expected_s=0.0)
    early = decide(replace(unseen, quiet_s=min(s.quiet_s, 1190.0)), LIMITS)
    late = decide(replace(unseen, quiet_s=max(s.quiet_s, 2400.0)), LIMITS)
    assert (early.verdict, late.verdict) == (None, Verdict.UNDECIDED)


@given(st.lists(views, min_size=1, max_size=6), st.randoms())
def test_the_suspect_does_not_depend_on_the_order_of_processes(processes, random):
    unique = list({p.pid: p for p in processes}.values())
    shuffled = unique[:]
    random.shuffle(shuffled)
    assert elect(unique) == elect(shuffled)


def asleep(pid: int, name: str = "worker", **changed) -> ProcessView:
    view = ProcessView(
        pid=pid, ppid=0, name=name, state="S", state_s=60, wchan="futex_wait", cpu_share=0.01, frames=WAITING
    )
    return replace(view, **changed)


def silent(*processes: ProcessView, **changed) -> Situation:
    s = Situation(
        now_s=100,
        phase=Phase.DIST_INIT,
        quiet_s=41,
        budget_s=30,
        processes=processes,
        rounds=5,
        rounds_over=3,
        rounds_span_s=10,
    )
    return replace(s, **changed)


def test_the_process_that_waits_for_no_other_is_the_suspect():
    s = silent(asleep(1, "front", waits=True), asleep(2, "engine", waits=True), asleep(3, "worker"))
    decision = decide(s, LIMITS)
    assert (decision.wait, decision.suspect.name) == (Wait.WAITING, "worker")


def test_of_many_ranks_the_one_elsewhere_is_the_suspect():
    ranks = [asleep(pid) for pid in range(1, 9)]
    ranks[5] = replace(ranks[5], frames=LOADING)
    assert elect(ranks).pid == 6


def test_of_two_ranks_the_one_that_has_not_come_is_the_suspect():
    """Both sleep, and two make no crowd: the first has only come earlier."""
    ranks = [asleep(1, meets=True), asleep(2, frames=LOADING)]
    assert elect(ranks).pid == 2


def test_a_rank_that_spins_for_its_peers_is_not_the_suspect():
    s = silent(
        asleep(1, state="R", cpu_share=1.0, spins=True),
        asleep(2, "late", frames=LOADING),
        rounds_over=6,
        rounds_span_s=31,
        quiet_s=75,
    )
    decision = decide(s, LIMITS)
    assert (decision.wait, decision.suspect.pid) == (Wait.SPINNING, 2)
    assert decision.cause.startswith("late waits in read_shard")
    assert "worker spins for it" in decision.cause


def test_spinning_needs_a_second_window():
    s = silent(asleep(1, state="R", cpu_share=1.0, spins=True))
    assert decide(s, LIMITS).state is State.SUSPECT
    assert decide(replace(s, rounds_over=6, rounds_span_s=30), LIMITS).wait is Wait.SPINNING


def test_a_busy_process_in_an_unknown_place_is_slow_until_the_hard_limit():
    s = silent(asleep(1, state="R", cpu_share=1.0), rounds_over=50, rounds_span_s=250)
    decision = decide(replace(s, quiet_s=280), LIMITS)
    assert decision.verdict is None
    assert decision.note.startswith("slow, no progress seen")
    assert decide(replace(s, quiet_s=301), LIMITS).wait is Wait.SPINNING


def test_the_hard_limit_of_jit_and_autotune_is_forty_minutes():
    assert HARD_LIMITS_S[Phase.COMPILE] == HARD_LIMITS_S[Phase.WARM_UP] == 2400


def test_without_a_readable_stack_a_hang_takes_twice_the_budget():
    s = silent(asleep(1, frames=()))
    assert decide(s, LIMITS).verdict is None
    assert decide(replace(s, quiet_s=61), LIMITS).wait is Wait.WAITING


def test_a_stopped_process_is_said_at_once_and_a_tracker_never():
    assert decide(silent(asleep(1, state="T"), quiet_s=2), LIMITS).wait is Wait.STOPPED
    assert decide(silent(asleep(1, state="T", state_s=1), quiet_s=2), LIMITS).verdict is None
    assert decide(silent(asleep(1, state="T", tracker=True), quiet_s=2), LIMITS).verdict is None


def test_uninterruptible_sleep_takes_as_long_as_the_phase_is_known_to_and_many_looks():
    s = silent(asleep(1, state="D", state_s=25, state_looks=25), quiet_s=25, rounds=0, rounds_over=0)
    assert decide(s, LIMITS).wait is Wait.BLOCKED_IO
    assert (
        decide(replace(s, processes=(asleep(1, state="D", state_s=25, state_looks=2),)), LIMITS).verdict
        is None
    )
    learnt = Limits(learnt={Phase.DIST_INIT: 60.0})
    assert decide(replace(s, budget_s=60), learnt).verdict is None
    assert decide(replace(s, budget_s=45), LIMITS).verdict is None  # a silence of 30 s had proved healthy
    longer = (asleep(1, state="D", state_s=61, state_looks=60),)
    late = replace(s, budget_s=60, quiet_s=61, processes=longer)
    assert decide(late, learnt).wait is Wait.BLOCKED_IO
    assert decide(late, Limits(learnt={Phase.DIST_INIT: 15.0})).wait is Wait.BLOCKED_IO


def test_a_wait_that_the_engine_ends_by_itself_is_said_at_once_and_left_to_it_but_no_longer():
    """A worker stopped under a timer of 20 s: the engine raises TimeoutError at 20.0 s and exits at 21 s."""
    limits = Limits(own_s={Phase.SERVING: 20.0})
    serving = silent(asleep(1, state="T", state_s=3), quiet_s=3, phase=Phase.SERVING)
    assert decide(serving, LIMITS).wait is Wait.STOPPED
    said = decide(serving, limits)
    assert (said.verdict, said.state) == (None, State.SUSPECT)
    assert said.note == "worker is stopped (state T for 3 s); left to the engine's own timer of 20 s"
    assert decide(replace(serving, phase=Phase.WEIGHT_LOAD), limits).wait is Wait.STOPPED
    later = replace(serving, processes=(asleep(1, state="T", state_s=31),))
    assert decide(later, limits).wait is Wait.STOPPED
    assert budget(Limits(own_s={Phase.DIST_INIT: 30.0}), Phase.DIST_INIT) == 40.0


def test_a_crash_beside_a_stopped_process_names_both_and_is_the_same_failure():
    gave_up = error("TimeoutError: RPC call to execute_model timed out")
    s = silent(asleep(2), error=gave_up, exit=Exit(code=0, signal=None), exit_age_s=6)
    plain = decide(s, LIMITS)
    stood = decide(replace(s, processes=(asleep(1, state="T", state_s=20), asleep(2))), LIMITS)
    gone = Vanished(pid=1, name="worker", at_s=59, lived_s=50, stopped_s=20)
    assert stood.cause == f"{gave_up.text}; worker was stopped (state T)"
    assert decide(replace(s, vanished=(gone,)), LIMITS).cause == stood.cause
    assert decide(replace(s, vanished=(replace(gone, stopped_s=1),)), LIMITS).cause == gave_up.text
    assert stood.fingerprint == plain.fingerprint


def error(text: str, at_s: float = 59, **changed) -> LoggedError:
    found = LoggedError(text=text, at_s=at_s, pid=7, rank="", strength=2, number=1)
    return replace(found, **changed)


def test_a_fatal_line_with_no_progress_after_it_is_crashed_and_not_hung():
    cause = error("ValueError: no weights")
    s = silent(asleep(1), error=cause, fatal=error("worker failed", 92), last_error_s=92, quiet_s=6)
    decision = decide(s, LIMITS)
    assert (decision.verdict, decision.cause, decision.exited) == (Verdict.CRASHED, cause.text, False)
    assert decide(replace(s, quiet_s=1), LIMITS).verdict is None


def test_a_launch_that_lived_on_after_a_fatal_line_gets_its_whole_budget():
    s = silent(asleep(1), fatal=error("x.cu: error: no such thing", at_s=10), quiet_s=29, rounds_over=0)
    assert decide(s, LIMITS).verdict is None
    later = replace(s, quiet_s=41, rounds_over=3)
    assert (decide(later, LIMITS).verdict, decide(later, LIMITS).wait) == (Verdict.HUNG, Wait.WAITING)
    went = Vanished(pid=4, name="worker", at_s=12, lived_s=9)
    assert decide(replace(later, vanished=(went,)), LIMITS).verdict is Verdict.CRASHED
    assert decide(replace(later, vanished=(replace(went, at_s=55),)), LIMITS).verdict is Verdict.HUNG


def test_a_rank_that_died_is_a_crash_although_the_others_go_on():
    s = silent(asleep(1), error=error("OutOfMemoryError: no"), fatal=error("Worker failed"), quiet_s=0)
    assert decide(s, LIMITS).verdict is None
    gone = Vanished(pid=7, name="worker", at_s=60, lived_s=50)
    assert decide(replace(s, vanished=(gone,)), LIMITS).verdict is Verdict.CRASHED


def test_an_exception_of_a_dead_process_as_the_last_event_makes_a_silence_a_crash():
    gone = Vanished(pid=7, name="worker", at_s=59, lived_s=50)
    s = silent(asleep(1), error=error("ValueError: no"), last_error_s=59, vanished=(gone,))
    assert decide(s, LIMITS).verdict is Verdict.CRASHED
    assert decide(replace(s, vanished=()), LIMITS).verdict is Verdict.HUNG


def test_an_exit_is_a_crash_whatever_its_code():
    s = silent(exit=Exit(code=0, signal=None), exit_age_s=1)
    assert decide(s, LIMITS).cause == "exited with code 0 although it should serve"
    killed = decide(replace(s, exit=Exit(code=None, signal=9)), LIMITS)
    assert "SIGKILL" in killed.cause
    assert "out of memory" in killed.cause


def test_a_process_that_vanished_before_the_first_complaint_is_the_cause():
    lost = Vanished(pid=4, name="worker", at_s=58.5, lived_s=40)
    helper = Vanished(pid=3, name="sh", at_s=58.5, lived_s=0.3)
    repeats = error("EngineDeadError: see above", strength=0)
    s = silent(error=repeats, vanished=(helper, lost), exit=Exit(code=0, signal=None), exit_age_s=6)
    assert decide(s, LIMITS).cause.startswith("worker died without an exception")


def test_a_leader_that_follows_within_the_second_leaves_the_lost_process_the_cause():
    """An API server whose engine core was killed was gone half a second later."""
    lost = Vanished(pid=4, name="EngineCore", at_s=59.0, lived_s=40)
    repeats = error("EngineDeadError: see above", strength=0)
    s = silent(error=repeats, vanished=(lost,), exit=Exit(code=0, signal=None), exit_age_s=40.5)
    assert decide(s, LIMITS).cause.startswith("EngineCore died without an exception")
    together = replace(lost, at_s=59.5)
    assert decide(replace(s, vanished=(together,)), LIMITS).cause == "EngineDeadError: see above"
    named = error("ValueError: no weights")
    assert decide(replace(s, error=named), LIMITS).cause == "ValueError: no weights"


def test_a_port_held_by_a_stranger_is_the_surroundings_and_no_crash():
    s = silent(error=error("OSError: [Errno 98] Address already in use"), exit=Exit(code=1, signal=None))
    s = replace(s, exit_age_s=1, processes=())
    ours = decide(s, LIMITS)
    assert (ours.verdict, ours.environment) == (Verdict.CRASHED, False)
    theirs = decide(replace(s, port_is_foreign=True), LIMITS)
    assert (theirs.verdict, theirs.environment) == (Verdict.UNDECIDED, True)


def test_the_expected_failure_met_twice_ends_early_and_only_that_one():
    early = silent(asleep(1), quiet_s=21, rounds_over=0, met_expected_s=10)
    print_ = decide(silent(asleep(1)), LIMITS).fingerprint
    known = Signature(verdict=Verdict.HUNG, phase=Phase.DIST_INIT, fingerprint=print_, wait=Wait.WAITING)
    assert decide(early, Limits(expected=known)).verdict is Verdict.HUNG
    assert decide(replace(early, met_expected_s=5), Limits(expected=known)).verdict is None
    assert decide(early, Limits(expected=replace(known, phase=Phase.COMPILE))).verdict is None
    assert decide(early, LIMITS).verdict is None


def test_budgets_are_learnt_from_silences_and_grow_when_they_were_wrong():
    learnt = learn([{Phase.COMPILE: 4.0, Phase.IMPORT: 30.0}, {Phase.COMPILE: 9.0}])
    assert learnt == {Phase.COMPILE: 27.0, Phase.IMPORT: 90.0}
    assert learn([{Phase.BIND: 1.0}]) == {Phase.BIND: 15.0}
    assert budget(Limits(learnt=learnt), Phase.COMPILE) == 27.0
    assert budget(LIMITS, Phase.COMPILE) == 30.0
    assert budget(LIMITS, Phase.COMPILE, overturned_s=40.0) == 60.0


def test_an_idle_server_is_silent_only_while_a_request_is_in_flight():
    assert silence(Phase.SERVING, 500.0, None) == 0.0
    assert silence(Phase.SERVING, 500.0, 12.0) == 12.0
    assert silence(Phase.BIND, 500.0, None) == 500.0
