"""Factors of launches: the demo's, users' own, and laws that hold for any."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import (
    Command,
    Experiment,
    Factor,
    FactorKind,
    FlagTable,
    Judgement,
    Launch,
    Outcome,
    Phase,
    Purpose,
    Verdict,
    Wait,
)
from shakedown.engines import parse, read_table
from shakedown.isolate import isolate
from shakedown.isolate.factors import (
    apply,
    close,
    describe_changes,
    factors_of,
    with_debug_logging,
)

HERE = Path(__file__).parent
TABLES = HERE.parent / "src/shakedown/engines/tables"


HUNG = Judgement(verdict=Verdict.HUNG, phase=Phase.WARM_UP, wait=Wait.WAITING, fingerprint="h")
SERVES = Judgement(verdict=Verdict.SERVES, phase=Phase.SERVING)


def table(name: str, device: str) -> FlagTable:
    found = read_table((TABLES / f"{name}.json").read_text(), engine=name, source="shipped")
    assert isinstance(found, FlagTable)
    return replace(found, device=device)


VLLM_CPU, VLLM = table("vllm", "cpu"), table("vllm", "cuda")
SGLANG_CPU, SGLANG = table("sglang", "cpu"), table("sglang", "cuda")

DEMO = """python -m vllm.entrypoints.openai.api_server --model M --host 127.0.0.1 --port 8101
--max-model-len 2048 --dtype bfloat16 --enforce-eager --max-num-seqs 8 --seed 0 --nnodes 2 --node-rank 0
--master-addr 127.0.0.1 --master-port 29501 --pipeline-parallel-size 2 --disable-log-stats"""
DEMO_ENV = {
    "PATH": "/bin",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "OMP_NUM_THREADS": "2",
    "VLLM_API_KEY": "secret",
    "UNRELATED": "x",
}


def read(line: str | list[str], env: dict[str, str] | None = None, flags: FlagTable | None = VLLM) -> Command:
    argv = tuple(line.split() if isinstance(line, str) else line)
    return parse(Launch(argv=argv, env=env or {}, cwd=Path("/")), flags)


def trial(kept: set[str] | frozenset[str], **more: object) -> Experiment:
    return Experiment(kept=frozenset(kept), purpose=Purpose.SPLIT, reason="", **more)  # type: ignore[arg-type]


def safe(command: Command, flags: FlagTable | None) -> Launch:
    factors = factors_of(command, flags)
    return apply(command.launch, factors, trial({factor.name for factor in factors if factor.safe}))


def find(command: Command, flags: FlagTable | None, text: str) -> Factor:
    return next(factor for factor in factors_of(command, flags) if text in factor.name)


def test_the_demo_has_its_two_node_layout_as_one_factor():
    command = read(DEMO, DEMO_ENV, VLLM_CPU)
    names = {factor.name: factor for factor in factors_of(command, VLLM_CPU)}
    assert set(names) == {
        "multi-node layout (--nnodes 2)",
        "--dtype bfloat16",
        "--max-num-seqs 8",
        "--disable-log-stats",
        "prefix caching",
        "chunked prefill",
        "--enforce-eager",
        "OMP_NUM_THREADS=2",
        "VLLM_LOGGING_LEVEL=INFO",
    }
    layout = names["multi-node layout (--nnodes 2)"]
    assert layout.was == (
        "--nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port 29501 --pipeline-parallel-size 2"
    )
    assert layout.kind is FactorKind.GROUP


def test_the_demos_safe_mode_is_a_launch_that_serves_here():
    # This very command served on the CPU (0.32.0).
    launch = safe(read(DEMO, DEMO_ENV, VLLM_CPU), VLLM_CPU)
    assert " ".join(launch.argv) == (
        "python -m vllm.entrypoints.openai.api_server --model M --host 127.0.0.1 --port 8101 "
        "--max-model-len 2048 --enforce-eager --seed 0 "
        "--no-enable-prefix-caching --no-enable-chunked-prefill"
    )
    assert launch.env == {
        name: DEMO_ENV[name]
        for name in ("PATH", "VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE", "VLLM_API_KEY", "UNRELATED")
    }


def test_off_switches_that_the_user_gave_stay_in_safe_mode_and_can_be_taken_away():
    command = read(DEMO, DEMO_ENV, VLLM_CPU)
    factors = factors_of(command, VLLM_CPU)
    (switch,) = [factor for factor in factors if factor.safe]
    assert (switch.name, switch.now) == ("--enforce-eager", "removed")
    defaults = {factor.name for factor in factors if factor.kind in (FactorKind.DEFAULT, FactorKind.BACKEND)}
    argv = apply(command.launch, factors, trial(defaults)).argv
    assert "--enforce-eager" not in argv
    assert "--no-enable-prefix-caching" not in argv
    assert "--nnodes" not in argv


def test_sglang_on_the_cpu_keeps_the_kernels_that_run_there():
    line = (
        "env SGLANG_USE_CPU_ENGINE=1 SGLANG_TEST_STUCK_SCHEDULER_INIT=600 python -m sglang.launch_server "
        "--model-path M --device cpu --attention-backend torch_native --mem-fraction-static 0.2 "
        "--max-total-tokens 8192"
    )
    command = read(line, {}, SGLANG_CPU)
    names = [factor.name for factor in factors_of(command, SGLANG_CPU)]
    assert names == ["radix cache", "overlap scheduling", "SGLANG_TEST_STUCK_SCHEDULER_INIT=600"]
    launch = safe(command, SGLANG_CPU)
    assert launch.argv[:3] == ("env", "SGLANG_USE_CPU_ENGINE=1", "python")
    assert "torch_native" in launch.argv
    amx = read(line.replace("torch_native", "intel_amx"), {}, SGLANG_CPU)
    assert find(amx, SGLANG_CPU, "intel_amx").add_argv == ("--attention-backend", "torch_native")


def test_a_tiny_cache_is_replaced_not_masked():
    command = read("vllm serve M --kv-cache-memory-bytes 1000000", {}, VLLM_CPU)
    factor = find(command, VLLM_CPU, "--kv-cache-memory-bytes")
    assert factor.kind is FactorKind.FIT
    assert factor.add_argv == ("--kv-cache-memory-bytes", str(2**30))
    assert factor.add_env == ()
    # On a GPU the engine sizes it itself.
    assert find(read("vllm serve M --kv-cache-memory-bytes 1000000"), VLLM, "--kv-cache").add_argv == ()


@pytest.mark.parametrize(("value", "expected"), [("1", None), ("4", None), ("100", "1"), ("0", "1")])
def test_the_cpu_cache_variable_is_essential_unless_it_is_extreme(value, expected):
    command = read("vllm serve M", {"VLLM_CPU_KVCACHE_SPACE": value}, VLLM_CPU)
    launch = safe(command, VLLM_CPU)
    assert launch.env["VLLM_CPU_KVCACHE_SPACE"] == (expected or value)


def test_where_sockets_go_may_be_blamed_and_where_weights_lie_may_not():
    places = {"VLLM_RPC_BASE_PATH": "/gone", "VLLM_CACHE_ROOT": "/cache"}
    found = factors_of(read("vllm serve M", places, VLLM), VLLM)
    assert "VLLM_RPC_BASE_PATH" in {name for factor in found for name in factor.drop_env}
    assert "VLLM_CACHE_ROOT" not in {name for factor in found for name in factor.drop_env}


def test_a_context_is_shortened_never_left_to_the_model():
    command = read("vllm serve M --max-model-len 128k")
    assert find(command, VLLM, "--max-model-len").add_argv == ("--max-model-len", "2048")
    assert not [f for f in factors_of(read("vllm serve M --max-model-len 2k"), VLLM) if "max-model" in f.name]


def test_ranks_that_span_nodes_are_folded_onto_one():
    command = read(
        "sglang serve --model-path M --tp 16 --nnodes 2 --node-rank 0 --dist-init-addr n:1", {}, SGLANG
    )
    layout = find(command, SGLANG, "--nnodes 2")
    assert layout.add_argv == ("--tp", "8")
    assert "--tp 16" in layout.was


def test_nodes_spread_by_data_parallelism_need_it():
    command = read("vllm serve M --nnodes 2 --data-parallel-size 2 -tp 4")
    layout = find(command, VLLM, "--nnodes 2")
    replicas = find(command, VLLM, "--data-parallel-size 2")
    assert layout.needs == {replicas.name}
    assert find(command, VLLM, "-tp 4").kind is FactorKind.FIT


def test_an_explicit_choice_and_its_safe_sibling_are_one_factor():
    command = read(
        "vllm serve M --enable-prefix-caching --attention-backend FLASHINFER", {"NCCL_P2P_DISABLE": "0"}
    )
    factors = {factor.name: factor for factor in factors_of(command, VLLM)}
    assert factors["--enable-prefix-caching"].add_argv == ("--no-enable-prefix-caching",)
    assert factors["--attention-backend FLASHINFER"].add_argv == ("--attention-backend", "TRITON_ATTN")
    assert "prefix caching" not in factors
    assert factors["NCCL_P2P_DISABLE=0"].drop_env == ("NCCL_P2P_DISABLE",)


def test_tuning_of_a_feature_goes_with_the_feature():
    command = read("vllm serve M --max-model-len 9000 --max-num-batched-tokens 512 -cc.mode=2")
    factors = factors_of(command, VLLM)
    needs = {factor.name: set(factor.needs) for factor in factors}
    assert needs["-cc.mode=2"] == {"compilation and CUDA graphs"}
    assert needs["--max-num-batched-tokens 512"] == {"chunked prefill"}
    kept = frozenset(needs) - {"chunked prefill"}
    assert "--max-model-len 9000" not in close(factors, kept)
    argv = apply(command.launch, factors, trial(kept)).argv
    assert "--max-num-batched-tokens" not in argv
    assert argv[-3:] == ("--max-model-len", "2048", "--no-enable-chunked-prefill")


def test_single_rank_launches_have_no_factors_of_many():
    names = {factor.name for factor in factors_of(read("vllm serve M -tp 1"), VLLM)}
    assert not names & {"custom all-reduce", "NCCL peer-to-peer", "-tp 1"}
    names = {factor.name for factor in factors_of(read("vllm serve M -tp 2"), VLLM)}
    assert names >= {"custom all-reduce", "NCCL peer-to-peer", "-tp 2"}


@pytest.mark.parametrize(
    ("env", "name"), [({"NCCL_P2P_DISABLE": "1"}, "NCCL_P2P_DISABLE=1"), ({}, "custom all-reduce")]
)
def test_how_ranks_reduce_is_blamed_without_the_number_of_ranks(env, name):
    """On one rank it means nothing: there safe mode serves whatever it is, and two ranks are no cause."""
    command = read("vllm serve M -tp 2", env)
    factors = factors_of(command, VLLM)
    (factor,) = [factor for factor in factors if factor.name == name]
    assert factor.needs == {"-tp 2"}
    assert name not in close(factors, {factor.name for factor in factors} - {"-tp 2"})

    def ask(experiment: Experiment) -> Outcome:
        hangs = {name, "-tp 2"} <= close(factors, experiment.kept)
        return Outcome(trial_id="t", judgement=HUNG if hangs else SERVES, seconds=60.0)

    found = isolate(factors, ask, seed=0)
    assert [cause.factors for cause in found.causes] == [(name,)]
    assert found.causes[0].proven


def test_a_variable_unset_by_env_is_set_all_the_same():
    command = read("env -u NCCL_P2P_DISABLE A=1 vllm serve M -tp 2")
    launch = safe(command, VLLM)
    assert launch.argv[:4] == ("env", "A=1", "vllm", "serve")
    assert launch.env["NCCL_P2P_DISABLE"] == "1"


def test_a_variable_set_twice_is_gone_from_both_places():
    command = read("env NCCL_DEBUG=INFO vllm serve M", {"NCCL_DEBUG": "TRACE"})
    launch = apply(command.launch, factors_of(command, VLLM), trial(set()))
    assert "NCCL_DEBUG" not in parse(launch, VLLM).env


def test_credentials_are_never_factors():
    env = {"VLLM_API_KEY": "k", "HF_TOKEN": "t", "S3_SECRET_ACCESS_KEY": "s", "SGLANG_X_PASSWORD": "p"}
    command = read("vllm serve M --api-key k --hf-token t", env)
    assert not [f for f in factors_of(command, VLLM) if {"k", "t", "s", "p"} & set(f.was.split("=")[-1:])]


def test_a_substitute_takes_the_place_of_the_value():
    command = read("vllm serve M --max-num-seqs 64", {"OMP_NUM_THREADS": "9"})
    factors = factors_of(command, VLLM)
    everything = {factor.name for factor in factors}
    other = (("--max-num-seqs 64", ("--max-num-seqs", "8")), ("OMP_NUM_THREADS=9", ("OMP_NUM_THREADS=1",)))
    launch = apply(command.launch, factors, trial(everything, substitutes=other))
    assert launch.argv == ("vllm", "serve", "M", "--max-num-seqs", "8")
    assert launch.env == {"OMP_NUM_THREADS": "1"}
    assert describe_changes(factors, everything, other[:1]) == (
        "--max-num-seqs 64: replaced by --max-num-seqs 8",
    )


def test_changes_are_told_in_words():
    command = read("vllm serve M --max-num-seqs 64 --max-model-len 9000")
    told = describe_changes(factors_of(command, VLLM), {"chunked prefill"})
    assert "--max-num-seqs 64: removed" in told
    assert "--max-model-len 9000: replaced by --max-model-len 2048" in told
    assert "compilation and CUDA graphs: switched off by --enforce-eager" in told
    assert "attention backend: set by --attention-backend TRITON_ATTN" in told


def test_debug_logging_is_the_engines_own():
    command = read("sglang serve --model-path M", {}, SGLANG)
    launch = with_debug_logging(command.launch, command.engine)
    assert launch.argv[-2:] == ("--log-level", "debug")
    assert launch.env["NCCL_DEBUG"] == "INFO"


# --- laws -------------------------------------------------------------------------------------

INCIDENTS = [json.loads(line) for line in (HERE / "logs/launches.jsonl").read_text().splitlines()]
PROGRAMS = {"vllm": ["vllm", "serve", "M"], "sglang": ["python", "-m", "sglang.launch_server"]}


def incident(number: int, device: str) -> tuple[Command, FlagTable | None]:
    case = INCIDENTS[number]
    program = PROGRAMS.get(case["engine"], ["llama-server"])
    flags = {"vllm": table("vllm", device), "sglang": table("sglang", device)}.get(case["engine"])
    return read([*program, *case["argv"]], case["env"], flags), flags


@pytest.mark.parametrize("number", range(len(INCIDENTS)))
def test_every_launch_of_a_real_incident_reads_and_round_trips(number):
    command, flags = incident(number, "cuda")
    covered = sorted(at for use in command.uses for at in use.positions if use.spelled)
    begin = len(command.launch.argv) - len(INCIDENTS[number]["argv"])
    assert covered == list(range(begin, len(command.launch.argv)))
    factors = factors_of(command, flags)
    everything = {factor.name for factor in factors}
    assert apply(command.launch, factors, trial(everything)) == command.launch
    unknown = {use.spelled for use in command.uses if use.spelled and not use.known}
    # Flags of other versions and forks: gone by 0.32 and 0.5.14, or never theirs.
    assert unknown <= {"--enable-flashinfer-mla", "--enable-ep-moe", "--kvtc-pca-dim"} or not flags


@given(data=st.data(), device=st.sampled_from(["cuda", "cpu"]))
def test_any_subset_composes(data, device):
    number = data.draw(st.integers(0, len(INCIDENTS) - 1))
    command, flags = incident(number, device)
    launch = replace(command.launch, argv=("env", "-u", "X", "NCCL_DEBUG=INFO", *command.launch.argv))
    command = parse(launch, flags)
    factors = factors_of(command, flags)
    names = [factor.name for factor in factors]
    assert len(set(names)) == len(names)
    dropped = [at for factor in factors for at in factor.drop_argv]
    assert len(set(dropped)) == len(dropped)
    gone = [name for factor in factors for name in factor.drop_env]
    assert len(set(gone)) == len(gone)
    for factor in factors:
        assert factor.needs <= set(names) - {factor.name}

    kept = data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    made = apply(launch, factors, trial(kept))
    alive = close(factors, kept)
    assert apply(launch, factors, trial(alive)) == made
    changed = [factor for factor in factors if factor.name not in alive]
    left = [t for at, t in enumerate(launch.argv) if not any(at in f.drop_argv for f in changed)]
    assert list(made.argv[: len(left)]) == left
    assert made.argv[len(left) :] == tuple(t for f in changed for t in f.add_argv)
    assert len(describe_changes(factors, kept)) == len(changed)

    again = parse(made, flags)
    assert again.engine is command.engine
    for flag in ("--model", "--model-path", "--port", "--host", "--trust-remote-code"):
        assert again.value(flag) == command.value(flag)
    assert "X" not in again.env
