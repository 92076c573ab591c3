"""Records as a real search of a two-node recipe on one node would leave them."""

from dataclasses import replace
from pathlib import Path

from shakedown.core import (
    Cause,
    CauseKind,
    Check,
    Conclusion,
    Ended,
    Evidence,
    Experiment,
    Factor,
    FactorKind,
    Hypothesis,
    HypothesisState,
    Judgement,
    Outcome,
    Phase,
    PhaseSpan,
    Purpose,
    RecordState,
    SearchRecord,
    Step,
    Suspect,
    TrialRecord,
    Verdict,
    Wait,
    Workaround,
)

NODES = ("--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "29501")
LAYOUT = (*NODES, "--pipeline-parallel-size", "2")
PLAIN = ("vllm", "serve", "/models/smollm2 135m", "--port", "8000", "--max-model-len", "2048")
REST = ("--dtype", "bfloat16", "--seed", "7", "--api-key", "[redacted]", "--block-size", "32")
ARGV = (*PLAIN, *LAYOUT, *REST)
ENV = (("VLLM_LOGGING_LEVEL", "INFO"), ("OMP_NUM_THREADS", "2"))


def span(phase, started_s, ended_s, rank="0"):
    return PhaseSpan(phase=phase, rank=rank, started_s=started_s, ended_s=ended_s)


HUNG = Judgement(
    verdict=Verdict.HUNG,
    wait=Wait.WAITING,
    phase=Phase.DIST_INIT,
    cause="waits in init_process_group for 1 of 2 nodes that never joins",
    fingerprint="waits in init_process_group",
    suspect=Suspect(
        pid=4711,
        name="VLLM::EngineCore",
        frame="init_process_group (distributed_c10d.py:1710)",
        wchan="futex_wait_queue",
    ),
    phases=(
        span(Phase.IMPORT, 0.0, 9.1),
        span(Phase.CONFIG, 9.1, 13.0),
        span(Phase.DIST_INIT, 13.0, None),
    ),
    evidence=(
        Evidence(kind="progress", text="no hard progress of any process for 30 s", at_s=44.2),
        Evidence(
            kind="stack",
            text="init_process_group <- init_distributed_environment <- init_device",
            at_s=49.3,
            pid=4711,
        ),
        Evidence(kind="stack", text="the same three times, 5 s apart; 0.4 % of a core", at_s=59.4, pid=4711),
    ),
    would_change="a new log template, a rise of memory or a byte on a socket within the last 45 s",
    exited=True,
)
SERVES = Judgement(
    verdict=Verdict.SERVES,
    phase=Phase.SERVING,
    phases=(
        span(Phase.IMPORT, 0.0, 9.0),
        span(Phase.WEIGHT_LOAD, 14.0, 16.0, rank="0"),
        span(Phase.WEIGHT_LOAD, 14.0, 22.0, rank="1"),
        span(Phase.SERVING, 31.0, None),
    ),
)
CRASHED = Judgement(
    verdict=Verdict.CRASHED,
    phase=Phase.CONFIG,
    cause="ValueError: world size (2) is not divisible by nnodes | <script>@all `x`",
    exited=False,
)

FACTORS = (
    Factor(name="nodes", kind=FactorKind.GROUP, was=" ".join(LAYOUT), now=""),
    Factor(name="--block-size", kind=FactorKind.FLAG, was="--block-size 32", now=""),
    Factor(name="--seed", kind=FactorKind.FLAG, was="--seed 7", now=""),
    Factor(name="OMP_NUM_THREADS", kind=FactorKind.ENV, was="OMP_NUM_THREADS=2", now=""),
    Factor(name="cuda graphs", kind=FactorKind.DEFAULT, was="on", now="--enforce-eager"),
)
ALL = frozenset(factor.name for factor in FACTORS)
TRIED = (
    ("t251129-161402-8k3f", Purpose.REPRODUCE, ALL, HUNG, 61.0, "it fails: hung in dist_init"),
    ("t251129-161504-0a11", Purpose.SAFE_MODE, frozenset(), SERVES, 41.0, "the flags are to blame"),
    ("t251129-161546-1b22", Purpose.ALONE, frozenset({"nodes"}), HUNG, 60.0, "nodes is enough to fail"),
    ("t251129-161650-2c33", Purpose.WORKAROUND, ALL - {"nodes"}, SERVES, 44.0, "without nodes it serves"),
)


def trial(name, purpose=None, kept=ALL, judgement=HUNG, seconds=61.0, **fields):
    experiment = purpose and Experiment(kept=kept, purpose=purpose, reason=f"the plan's {purpose.value}")
    without = tuple(token for token in ARGV if "nodes" in kept or token not in LAYOUT or token in PLAIN)
    common = {
        "id": name,
        "search_id": "s251129-161402-8k00" if purpose else None,
        "experiment": experiment,
        "engine": "vllm",
        "argv": without,
        "env": ENV,
        "cwd": "/home/me/serving",
        "folder": Path("/state/runs") / name,
        "started_at": "2025-11-29T16:14:02Z",
        "state": RecordState.FINISHED,
        "seconds": seconds,
        "judgement": judgement,
        "facts": (("engine_version", "0.32.0"), ("host", "box")),
    }
    return TrialRecord(**(common | fields))


TRIALS = tuple(trial(*row[:5]) for row in TRIED)
RUN = trial("t251129-160000-rrrr")
CAUSE = Cause(
    kind=CauseKind.FACTORS,
    factors=("nodes",),
    rung=None,
    certificate=(
        ("alone_fails", Check(value=True, trial_ids=("t251129-161402-8k3f", "t251129-161546-1b22"))),
        ("one_less_passes", Check(value=True, trial_ids=("t251129-161504-0a11",), note="it serves")),
        ("workaround_serves", Check(value=True, trial_ids=("t251129-161650-2c33",))),
    ),
    workaround=Workaround(kept=ALL - {"nodes"}, changes=("--nnodes 2 and what hangs on it: removed",)),
)
CONCLUSION = Conclusion(
    ended=Ended.PROVEN,
    failing=HUNG,
    causes=(CAUSE,),
    suspects=(),
    cleared=("--block-size", "--seed", "OMP_NUM_THREADS", "cuda graphs"),
    not_cleared=(),
    other_failures=(("t251129-161700-3d44", "crashed in config: " + CRASHED.cause),),
    probability=0.99,
    hypotheses=(
        Hypothesis(
            statement="the two-node layout is the cause",
            predicts="without it the launch serves",
            state=HypothesisState.SUPPORTED,
            trial_ids=("t251129-161546-1b22",),
        ),
    ),
    steps=tuple(
        Step(
            experiment=record.experiment,
            outcome=Outcome(trial_id=record.id, judgement=record.judgement, seconds=record.seconds),
            concluded=row[5],
        )
        for record, row in zip(TRIALS, TRIED, strict=True)
    ),
)
SEARCH = SearchRecord(
    id="s251129-161402-8k00",
    engine="vllm",
    argv=ARGV,
    env=ENV,
    secrets=(("HF_TOKEN", "9f3c"),),
    cwd="/home/me/serving",
    started_at="2025-11-29T16:14:02Z",
    state=RecordState.FINISHED,
    seed=0,
    facts=(("engine_version", "0.32.0"), ("host", "box")),
    conclusion=CONCLUSION,
    factors=FACTORS,
    seconds=208.0,
)


def search(**fields):
    """The sample with a changed conclusion."""
    return replace(SEARCH, conclusion=replace(CONCLUSION, **fields))
