"""The watcher on scripted launches: what moves, what only seems to, and what a silence comes to."""

import os
import signal
import threading
from dataclasses import replace

import pytest
from replaying import MIB, Script, process, run_until, stack, watch

from shakedown.core import Exit, GpuUse, Listener, Missing, Phase, Verdict, Wait
from shakedown.engines.sglang import SGLANG
from shakedown.engines.vllm import VLLM
from shakedown.watch import Limits, State

STUCK = stack(1, "wait_for_peer engine/store.py:10", "main engine/main.py:3")


def still(at_s: float):
    """A process that moves for ten seconds and never again."""
    return [process(rss_bytes=int(100 + 10 * min(at_s, 10)) * MIB)]


def stuck(at_s: float, pid: int):
    return replace(STUCK, pid=pid)


def test_a_silent_launch_is_hung_forty_seconds_after_it_last_moved():
    host = Script(still, stacks=stuck)
    assessment = run_until(host, watch(host), 120)
    judgement = assessment.judgement
    assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)
    assert judgement.suspect.frame == "wait_for_peer (engine/store.py:10)"
    assert 40 <= assessment.quiet_s <= 42
    assert {item.kind for item in judgement.evidence} >= {"process", "progress", "not read"}


def test_an_interrupt_does_not_wait_for_a_look_that_hangs():
    begun, ended, over = [], [], threading.Event()

    def hanging(at_s: float, pid: int):
        begun.append(pid)
        if len(begun) == 4:  # to the process: raised in this thread, it would not wake the main one
            os.kill(os.getpid(), signal.SIGUSR1)
        over.wait(10)
        ended.append(pid)
        return Missing(what="stacks", why="py-spy did not come back")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    host = Script(lambda at_s: [process(pid) for pid in range(100, 124)], stacks=hanging)
    watcher = watch(host)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_until(host, watcher, 120)
        assert (len(begun), ended) == (4, [])
    finally:
        signal.signal(signal.SIGUSR1, before)
        over.set()


def test_the_states_on_the_way_are_moving_quiet_suspect_final():
    host = Script(still, stacks=stuck)
    watcher = watch(host)
    states = []
    while not states or states[-1] is not State.FINAL:
        host.advance(1.0)
        states.append(watcher.step().state)
    assert list(dict.fromkeys(states)) == [State.MOVING, State.QUIET, State.SUSPECT, State.FINAL]


def test_learnt_budgets_say_it_sooner():
    host = Script(still, stacks=stuck)
    assessment = run_until(host, watch(host, limits=Limits(learnt={Phase.IMPORT: 15.0})), 120)
    assert assessment.quiet_s <= 27


def jitter(at_s):
    return [replace(still(at_s)[0], rss_bytes=(200 + int(at_s) % 3) * MIB)]


def polling(at_s):
    return [replace(still(at_s)[0], read_bytes=int(3500 * at_s), cpu_s=1 + 0.02 * at_s)]


def trickle(at_s):
    return [replace(still(at_s)[0], minor_faults=1000 + int(at_s) // 10 * 200)]


def helper_every_ten_seconds(at_s):
    extra = [process(int(90 + at_s // 10), name="nvidia-smi")] if at_s % 10 < 1 else []
    return [replace(still(at_s)[0], children_cpu_s=0.05 * (at_s // 10)), *extra]


@pytest.mark.parametrize("launch", [jitter, polling, trickle, helper_every_ten_seconds])
def test_heartbeats_are_not_progress(launch):
    host = Script(launch, stacks=stuck)
    assert run_until(host, watch(host), 100).judgement.verdict is Verdict.HUNG


def test_a_talking_hang_is_a_hang():
    lines = [(float(t), f"DEBUG still alive, {t} s") for t in range(0, 200, 10)]
    lines += [(t + 1.0, f"retrying, attempt {t}/200") for t in range(0, 200, 10)]
    host = Script(still, stacks=stuck, lines=sorted(lines))
    assert run_until(host, watch(host), 100).judgement.verdict is Verdict.HUNG


def slow_load(at_s):  # 7.5 MB/s from a slow disk, asleep in a page fault, 1.6 % of a core
    return [process(rss_bytes=int(100 * MIB + 7.5e6 * at_s), wchan="request_wait_answer", cpu_s=0.016 * at_s)]


def faults(at_s):
    return [process(minor_faults=int(22_000 * at_s))]


def reading(at_s):
    return [process(read_bytes=int(200_000 * at_s))]


def mapping(at_s):
    """A second shard of a mapped file from a slow disk, in pages that took the first one's place."""
    return [process(state="D", wchan="folio_wait_bit_common", disk_bytes=int(5e6 * at_s))]


def compiling(at_s):
    child = process(int(100 + at_s // 4), name="cc1plus", state="R", cpu_s=at_s % 4)
    return [process(state="S", wchan="do_wait"), child]


def reaping(at_s):
    return [process(children_cpu_s=0.8 * at_s)]


@pytest.mark.parametrize("launch", [slow_load, faults, reading, mapping, compiling, reaping])
def test_a_slow_but_healthy_start_is_never_suspected(launch):
    host = Script(launch, stacks=stuck)
    watcher = watch(host)
    for _ in range(180):
        host.advance(1.0)
        assert watcher.step().state is State.MOVING


@pytest.mark.parametrize("launch", [faults, reading, reaping])
def test_what_works_is_seen_although_a_look_at_the_stacks_takes_forty_seconds(launch):
    host = Script(launch, stacks=stuck, seconds=500)
    watcher = watch(host)
    run_until(host, watcher, 10)
    for _ in range(11):
        host.advance(40.0)
        assert watcher.step().state is State.MOVING


@pytest.mark.parametrize("launch", [polling, trickle])
def test_a_heartbeat_is_no_progress_however_seldom_it_is_looked_at(launch):
    host = Script(launch, stacks=stuck, seconds=500)
    assert run_until(host, watch(host), 480, step_s=40.0).judgement.verdict is Verdict.HUNG


def test_native_looks_do_not_add_up():
    both = threading.Barrier(2)

    def native(at_s, pid):
        both.wait(10)  # each comes back only once the other has begun
        return stack(pid, "sched_yield libc.so:1", "ncclGroupEnd libnccl.so:2")

    host = Script(lambda t: [replace(burning(t)[0], pid=pid) for pid in (1, 2)], stacks=stuck, native=native)
    assert run_until(host, watch(host), 150).judgement.wait is Wait.SPINNING


def test_a_download_that_only_sockets_show_is_progress():
    host = Script(still, stacks=stuck, sockets=lambda t: {1: int(500_000 * t)})
    assert run_until(host, watch(host), 150).judgement is None


def test_rendezvous_polling_on_a_socket_is_not():
    host = Script(still, stacks=stuck, sockets=lambda t: {1: int(3500 * t)})
    assert run_until(host, watch(host), 150).judgement.verdict is Verdict.HUNG


def test_growing_gpu_memory_is_progress_and_full_utilisation_is_not():
    def growing(t):
        return (GpuUse(pid=1, used_bytes=int(40 * MIB * t), utilisation_percent=0),)

    def spinning(t):
        return (GpuUse(pid=1, used_bytes=900 * MIB, utilisation_percent=100),)

    host = Script(still, stacks=stuck, gpus=growing)
    assert run_until(host, watch(host), 150).judgement is None
    host = Script(still, stacks=stuck, gpus=spinning)
    assert run_until(host, watch(host), 150).judgement.verdict is Verdict.HUNG


def test_stacks_that_move_on_are_progress_and_two_that_alternate_are_not():
    host = Script(still, stacks=lambda t, pid: stack(pid, f"load engine/load.py:{int(t)}"))
    assert run_until(host, watch(host), 150).judgement is None
    host = Script(still, stacks=lambda t, pid: stack(pid, f"poll engine/poll.py:{int(t) // 5 % 2}"))
    assessment = run_until(host, watch(host), 150)
    assert assessment.judgement.verdict is Verdict.HUNG


def test_a_suspicion_that_was_wrong_gives_the_phase_more_time():
    def pauses(at_s):  # moves at 10, then again at 45, then never
        return [process(rss_bytes=(200 if at_s < 10 else 300 if at_s < 45 else 400) * MIB)]

    host = Script(pauses, stacks=stuck)
    watcher = watch(host)
    assert run_until(host, watcher, 44).state is State.SUSPECT
    host.advance(1.0)
    assert watcher.step().state is State.MOVING
    assert watcher.silences[Phase.IMPORT] >= 34
    assert run_until(host, watcher, 120).quiet_s >= 1.5 * 35 + 10


def burning(at_s):
    return [replace(still(at_s)[0], state="R", cpu_s=at_s)]


def test_a_known_spin_is_confirmed_in_a_second_window():
    def native(at_s, pid):
        return stack(pid, "sched_yield libc.so:1", "ncclGroupEnd libnccl.so:2", "all_reduce torch/dist.py:3")

    host = Script(burning, stacks=stuck, native=native, seconds=400)
    assessment = run_until(host, watch(host), 390)
    assert assessment.judgement.wait is Wait.SPINNING
    assert 60 <= assessment.quiet_s <= 120


LOOP = (
    "Scheduler.event_loop_overlap managers/scheduler.py:1581",
    "run_scheduler_process managers/scheduler.py:9",
)


@pytest.mark.parametrize("polls", [True, False], ids=["idle", "at work"])
def test_a_loop_that_polls_for_requests_moves_nothing(polls):
    """SGLang with a stuck detokenizer: its idle scheduler stood elsewhere at every look, for minutes."""

    def launch(at_s):
        scheduler = replace(process(2, name="sglang::scheduler"), state="R", cpu_s=at_s)
        return [process(3, name="sglang::detokenizer"), scheduler]

    def stacks(at_s, pid):
        if pid == 3:
            return stack(3, "feed utils/watchdog.py:81", "event_loop managers/detokenizer_manager.py:167")
        inner = (
            "Scheduler.on_idle managers/scheduler.py:3480" if polls else "Scheduler.run_batch managers/s.py:1"
        )
        return stack(2, f"leaf_{int(at_s)} load_snapshot.py:{int(at_s)}", inner, *LOOP)

    host = Script(launch, stacks=stacks, seconds=400)
    judgement = run_until(host, watch(host, engine=SGLANG), 120).judgement
    if polls:
        assert (judgement.verdict, judgement.wait) == (Verdict.HUNG, Wait.WAITING)
        assert judgement.suspect.name == "sglang::detokenizer"
    else:
        assert judgement is None


def test_a_spin_under_vllms_weight_loader_is_no_known_computation():
    """Its loader is wrapped in support_quantized_model_reload_from_hp_weights: that quantizes nothing."""
    places = (
        "spin hanging.py:51",
        "safetensors_weights_iterator vllm/model_executor/model_loader/weight_utils.py:1208",
        "support_quantized_model_reload_from_hp_weights.<locals>.patched_model_load_weights vllm/t.py:1",
        "Worker.load_model vllm/v1/worker/gpu_worker.py:594",
    )

    def stacks(at_s, pid):
        return stack(pid, *places)

    def native(at_s, pid):
        return stack(pid, "sched_yield libc.so:1", *places)

    host = Script(burning, stacks=stacks, native=native, seconds=400)
    assessment = run_until(host, watch(host, engine=VLLM), 390)
    assert assessment.judgement.wait is Wait.SPINNING
    assert assessment.quiet_s <= 120


def test_a_launch_that_does_not_return_from_the_driver_spins():
    """Behind an endless kernel: SGLang on an H200 stood in flashinfer's norm for three minutes."""

    def native(at_s, pid):
        return stack(pid, "0x7ff9c85ac104 libcuda.so.580.159.04:0", "_rmsnorm_impl flashinfer/norm.py:161")

    host = Script(burning, stacks=stuck, native=native, seconds=400)
    assessment = run_until(host, watch(host), 390)
    assert assessment.judgement.wait is Wait.SPINNING
    assert assessment.quiet_s <= 120


def test_what_a_compiler_has_made_and_waits_for_the_gpu_spins():
    """The frames of inductor and Triton stand on the stack of everything they have compiled, too."""
    places = ("__call__ triton/backends/nvidia/driver.py:713", "call torch/_inductor/output_code.py:99")

    def native(at_s, pid):
        return stack(pid, "0x7ff9c85ac104 libcuda.so.580.159.04:0", *places)

    host = Script(burning, stacks=lambda t, pid: stack(pid, *places), native=native, seconds=400)
    assessment = run_until(host, watch(host), 390)
    assert assessment.judgement.wait is Wait.SPINNING
    assert assessment.quiet_s <= 120
    assert any("natively 0x7ff9c85ac104 (libcuda" in seen.text for seen in assessment.judgement.evidence)


@pytest.mark.parametrize(
    "leaf",
    ["poll libc.so.6:0", "0x7ff9c85ac104 libcuda.so.580.159.04:0"],
    ids=["for requests", "for the GPU"],
)
def test_a_scheduler_that_looks_for_its_next_batch_is_idle_unless_the_gpu_holds_it(leaf):
    places = ("get_next_batch_to_run sglang/srt/managers/scheduler.py:2710", *LOOP)
    host = Script(
        burning,
        stacks=lambda t, pid: stack(pid, *places),
        native=lambda t, pid: stack(pid, leaf, *places),
        seconds=200,
    )
    judgement = run_until(host, watch(host, engine=SGLANG), 150).judgement
    assert judgement.wait is (Wait.SPINNING if "libcuda" in leaf else Wait.WAITING)


def test_who_tunes_kernels_waits_for_the_gpu_and_is_not_hung():
    places = ("synchronize torch/cuda/__init__.py:1", "choose_one flashinfer/autotuner.py:400")

    def native(at_s, pid):
        return stack(pid, "0x7ff9c85ac104 libcuda.so.580.159.04:0", *places)

    host = Script(burning, stacks=lambda t, pid: stack(pid, *places), native=native, seconds=1000)
    assert run_until(host, watch(host), 900).judgement is None


def test_who_reads_the_clock_in_every_look_polls():
    def native(at_s, pid):
        return stack(pid, "0x7ff9c85ac104 [vdso]:0", "clock_gettime libc.so.6:0", "0x1 ?:0")

    host = Script(burning, stacks=stuck, native=native, seconds=400)
    assert run_until(host, watch(host), 390).judgement.wait is Wait.SPINNING


def test_code_that_the_driver_compiles_is_work():
    def native(at_s, pid):
        leaf = "0x7ff9c85ac104 libnvidia-ptxjitcompiler.so.580.159.04:0"
        return stack(pid, leaf, "0x7ff9c85ac104 libcuda.so.580.159.04:0", "load torch/nn.py:3")

    host = Script(burning, stacks=stuck, native=native, seconds=280)
    assert run_until(host, watch(host), 270).judgement is None


def test_a_barrier_in_some_looks_is_no_spin():
    """A kernel of many threads, on few cores: its main thread is caught waiting for the others at times."""

    def native(at_s, pid):
        leaf = "__kmp_barrier libiomp.so:1" if int(at_s) % 3 == 0 else "mkl_blas_sgemm libmkl.so:1"
        return stack(pid, leaf, "matmul torch/nn.py:3")

    host = Script(burning, stacks=stuck, native=native, seconds=280)
    assert run_until(host, watch(host), 270).judgement is None


def starved(at_s):
    """It gets 3 % of a core and wants all of one."""
    return [replace(still(at_s)[0], state="R", wchan="", cpu_s=1 + 0.03 * at_s)]


def test_a_process_that_is_kept_from_computing_does_not_wait():
    host = Script(starved, stacks=stuck, seconds=280)
    assessment = run_until(host, watch(host), 270)
    assert assessment.judgement is None
    assert assessment.note.startswith("slow, no progress seen")


def test_a_busy_process_in_an_unknown_place_is_slow_until_the_hard_limit_of_its_phase():
    host = Script(burning, stacks=stuck, seconds=400)
    watcher = watch(host)
    assessment = run_until(host, watcher, 290)
    assert assessment.state is State.SUSPECT
    assert assessment.note.startswith("slow, no progress seen")
    assert watcher.cut("deadline").verdict is Verdict.UNDECIDED
    assert run_until(host, watcher, 100).judgement.wait is Wait.SPINNING


def test_a_compile_in_process_is_not_hung_for_half_an_hour():
    host = Script(
        burning, stacks=lambda t, pid: stack(pid, "codegen torch/_inductor/graph.py:1"), seconds=2000
    )
    assert run_until(host, watch(host), 1900, step_s=3.0).judgement is None


def test_a_stopped_process_is_said_within_seconds():
    host = Script(lambda t: [process(state="T" if t >= 20 else "S", rss_bytes=int(t) * 10 * MIB)])
    assessment = run_until(host, watch(host), 60)
    assert assessment.judgement.wait is Wait.STOPPED
    assert assessment.now_s <= 24


def test_uninterruptible_sleep_is_said_after_twenty_seconds():
    host = Script(lambda t: [replace(still(t)[0], state="D" if t >= 10 else "S")])
    assessment = run_until(host, watch(host), 60)
    assert assessment.judgement.wait is Wait.BLOCKED_IO
    assert assessment.quiet_s <= 23


def blocked_between(first_s: float, last_s: float):
    def launch(at_s: float):
        grown = min(at_s, first_s) + max(0.0, at_s - last_s)
        state = "D" if first_s <= at_s < last_s else "S"
        return [process(rss_bytes=int(100 + 10 * grown) * MIB, state=state)]

    return launch


def test_a_slow_disk_that_earlier_launches_have_shown_is_waited_for():
    known, unknown = Script(blocked_between(10, 55)), Script(blocked_between(10, 55))
    learnt = Limits(learnt={Phase.IMPORT: 60.0})
    assert run_until(known, watch(known, limits=learnt), 100).judgement is None
    assert run_until(unknown, watch(unknown), 100).judgement.wait is Wait.BLOCKED_IO


def test_where_all_stood_still_for_a_minute_two_looks_prove_no_uninterruptible_sleep():
    host = Script(blocked_between(10, 73))
    watcher = watch(host)
    assert run_until(host, watcher, 11).state is State.MOVING
    host.advance(60)
    assert run_until(host, watcher, 60).judgement is None


def test_without_any_stack_the_verdict_comes_later_and_says_what_was_not_read():
    host = Script(still)
    assessment = run_until(host, watch(host), 120)
    assert assessment.judgement.verdict is Verdict.HUNG
    assert assessment.quiet_s >= 60
    assert any(item.kind == "not read" for item in assessment.judgement.evidence)


def test_an_idle_server_is_never_hung_but_a_request_without_answer_is():
    host = Script(still, stacks=stuck, seconds=400)
    watcher = watch(host)
    watcher.enter(Phase.READY)
    assert run_until(host, watcher, 120).state is State.MOVING
    assert host.asked_for_stacks == 0, "an idle server is left alone"
    watcher.probe_pending(True)
    assessment = run_until(host, watcher, 100)
    assert (assessment.judgement.wait, assessment.judgement.phase) == (Wait.WAITING, Phase.SERVING)
    assert 38 <= assessment.quiet_s <= 45


def test_after_our_signal_nothing_counts():
    lines = [(20.0, "EngineDeadError: dead"), (21.0, "EngineCore failed to start.")]
    host = Script(still, lines=lines, exit=Exit(code=1, signal=None), ended_s=25.0)
    watcher = watch(host, engine=VLLM)
    run_until(host, watcher, 19)
    watcher.mark_signal()
    assessment = run_until(host, watcher, 60)
    assert (assessment.judgement, assessment.first_error, assessment.state) == (None, None, State.MOVING)
    assert len(watcher.log_lines()) == 2, "it is still shown"


def test_the_last_words_of_a_leader_are_waited_for():
    host = Script(
        lambda t: [process()] if t < 10 else [],
        lines=[(10.4, "ValueError: too late for the exit")],
        exit=Exit(code=1, signal=None),
        ended_s=10.0,
    )
    assessment = run_until(host, watch(host), 30)
    assert assessment.judgement.cause == "ValueError: too late for the exit"
    assert assessment.now_s <= 12


@pytest.mark.parametrize(("threads", "gone"), [(3, False), (1, True)])
def test_a_process_lives_as_long_as_one_of_its_threads(threads, gone):
    """Its main thread has ended: the kernel calls that a zombie, too."""
    host = Script(lambda t: [process(1), process(2, state="Z" if t > 20 else "S", threads=threads)])
    watcher = watch(host)
    run_until(host, watcher, 25)
    assert [lost.pid for lost in watcher._readings.vanished] == ([2] if gone else [])


def test_a_leader_that_leaves_children_behind_is_crashed_and_says_so():
    host = Script(lambda t: [process(2, name="orphan")], exit=Exit(code=1, signal=None), ended_s=10.0)
    judgement = run_until(host, watch(host), 30).judgement
    assert (judgement.verdict, judgement.exited) == (Verdict.CRASHED, False)


def test_a_scheduler_that_dies_while_its_parent_waits_for_ever_is_crashed():
    text = "Scheduler hit an exception: Traceback (most recent call last):\n"
    text += '  File "a.py", line 1, in f\n    g()\n'
    host = Script(still, stacks=stuck, lines=[(12.0, text + "ValueError: no kernel")])
    assessment = run_until(host, watch(host, engine=SGLANG), 60)
    judgement = assessment.judgement
    assert (judgement.verdict, judgement.cause, judgement.exited) == (
        Verdict.CRASHED,
        "ValueError: no kernel",
        False,
    )
    assert assessment.now_s <= 20


def test_a_killed_child_is_named_where_the_log_only_repeats():
    def launch(at_s):
        return [process(1), *([process(2, name="VLLM::EngineCor")] if at_s < 20 else [])]

    lines = [(20.5, "(APIServer pid=1) ERROR 11-29 14:48:27 [a.py:9] EngineDeadError: see stack trace above")]
    host = Script(launch, stacks=stuck, lines=lines, exit=Exit(code=0, signal=None), ended_s=25.0)
    judgement = run_until(host, watch(host, engine=VLLM), 60).judgement
    assert judgement.cause.startswith("VLLM::EngineCor died without an exception")


def test_only_a_listener_of_ours_counts():
    def listener(ours):
        return Listener(port=8000, pid=5, program="python", ours=ours)

    host = Script(still, listener=listener(True))
    watcher = watch(host, port=8000)
    assert run_until(host, watcher, 5).listening == listener(True)
    host = Script(still, listener=listener(False))
    assert run_until(host, watch(host, port=8000), 5).listening is None


def test_a_cut_launch_is_slow_if_it_moved_and_else_undecided():
    host = Script(still, stacks=stuck)
    watcher = watch(host)
    run_until(host, watcher, 20)
    assert watcher.cut("deadline of 20 s").verdict is Verdict.SLOW
    assert watcher.cut("deadline of 20 s", 60.0).verdict is Verdict.UNDECIDED
    assert "deadline of 20 s" in watcher.cut("deadline of 20 s").cause


def test_a_host_that_reads_nothing_leads_to_no_verdict():
    class Blind(Script):
        def processes(self, run):
            return Missing(what="processes", why="no /proc here")

    host = Blind(still)
    assessment = run_until(host, watch(host), 150)
    assert assessment.judgement is None
    assert any("no /proc here" in item.text for item in assessment.evidence)


def test_lines_are_handed_out_once_and_can_be_asked_for_again():
    host = Script(still, lines=[(1.0, "one"), (2.0, "Route: /health, Methods: GET"), (3.0, "three")])
    watcher = watch(host, engine=VLLM)
    seen = []
    for _ in range(5):
        host.advance(1.0)
        seen += watcher.step().new_lines
    assert [(line.text, line.noise) for line in seen] == [
        ("one", False),
        ("Route: /health, Methods: GET", True),
        ("three", False),
    ]
    assert watcher.log_lines(since=2) == (seen[2],)


def test_a_final_judgement_stays():
    host = Script(still, stacks=stuck, exit=Exit(code=1, signal=None), ended_s=150.0)
    watcher = watch(host)
    final = run_until(host, watcher, 120).judgement
    host.advance(60.0)
    assert watcher.step().judgement == final


def test_a_lost_process_has_the_name_that_its_own_lines_give_it():
    """Killed within the second in which it took its title, a worker was last seen as a bare Python."""
    leader, worker = process(1), process(5, name="python -B -c from multiprocessing.spawn import …")
    host = Script(
        lambda at_s: [leader, worker] if at_s < 20 else [leader] if at_s < 30 else [],
        lines=[
            (15.0, "(Worker pid=5) INFO 11-29 18:17:45 [cpu_model_runner.py:70] Starting to load model M..."),
            (20.5, "(EngineCore pid=4) ERROR 11-29 18:17:46 [core.py:1510] EngineCore failed to start."),
        ],
        exit=Exit(code=1, signal=None),
        ended_s=30.0,
    )
    judgement = run_until(host, watch(host, engine=VLLM), 60).judgement
    assert judgement.cause.startswith("Worker died without an exception")


def test_a_rank_that_does_not_come_to_the_others_is_named():
    """As two ranks of one launch show it: one in a collective, one asleep before it."""
    met = (
        "wait threading.py:1",
        "new_group torch/distributed/distributed_c10d.py:5501",
        "init sglang/p.py:1",
    )
    late = ("sleep strike.py:8", "init_torch_distributed sglang/srt/model_executor/model_runner.py:1180")

    def stacks(at_s, pid):
        return stack(pid, *(met if pid == 1 else late))

    def two(at_s):
        return [replace(still(at_s)[0], pid=1), replace(still(at_s)[0], pid=2)]

    host = Script(two, stacks=stacks, seconds=200)
    assessment = run_until(host, watch(host), 190)
    assert assessment.judgement.wait is Wait.WAITING
    assert assessment.judgement.suspect.pid == 2
