"""Two healthy starts on an H200, cut by an impatient clock while kernels were compiled: slow, never hung.

Of these only the log was kept, dated by its own clock. The processes are told as they were seen: everybody
asleep but nvcc and its children, which come and go.
"""

import pytest
from replaying import MIB, TRACES, Script, process, run_until, stack

from shakedown.core import Phase, Verdict
from shakedown.engines.sglang import SGLANG
from shakedown.engines.vllm import VLLM
from shakedown.host.replay import Trace
from shakedown.watch import State, Watcher

CUT = {
    "W01-sglang-h200-warmup-compiles": (SGLANG, 93, Phase.BIND),
    "W02-vllm-h200-flashinfer-jit": (VLLM, 150, Phase.WARM_UP),
}
NVCC_S = 25  # one kernel of a file


def waiting(pid):
    return stack(pid, "wait threading.py:320", "build flashinfer/jit/core.py:1")


def compiling(since_s):
    """The engine asleep in one place from then on, above a compiler that is another every so often."""

    def processes(at_s):
        engine = process(1, rss_bytes=int(500 + 20 * min(at_s, since_s)) * MIB, wchan="do_wait")
        if at_s < since_s:
            return [engine]
        turn, into_s = divmod(at_s - since_s, NVCC_S)
        nvcc = process(int(100 + 2 * turn), ppid=1, name="nvcc", wchan="do_wait")
        cicc = process(int(101 + 2 * turn), ppid=nvcc.pid, name="cicc", state="R", cpu_s=into_s)
        return [engine, nvcc, cicc]

    return processes


def started(name):
    engine, cut_s, phase = CUT[name]
    lines = Trace.read(TRACES / name).lines
    silent_s = max(at_s for at_s, text in lines if "GET /health" not in text)
    host = Script(
        compiling(silent_s), lines=lines, stacks=lambda _, pid: waiting(pid), seconds=cut_s + 1, exit=None
    )
    return host, Watcher(host, host.run, engine), cut_s, phase


@pytest.mark.parametrize("name", CUT)
def test_a_start_cut_while_it_compiled_is_slow(name):
    host, watcher, cut_s, phase = started(name)
    assessment = run_until(host, watcher, cut_s)
    assert assessment.judgement is None
    assert assessment.state in {State.MOVING, State.QUIET}
    judgement = watcher.cut(f"cut by the deadline of {cut_s} s")
    assert judgement.verdict is Verdict.SLOW
    assert judgement.phase is phase
    assert "(the launch)" in judgement.cause or "(nvcc" in judgement.cause or "(cicc" in judgement.cause
