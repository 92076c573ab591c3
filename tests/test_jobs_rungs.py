"""What a launch stands on, as launches: which rungs, with which words, and how a script passes or fails."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shakedown.core import Launch, Verdict
from shakedown.engines import engine_named, parse
from shakedown.engines.needs import needs_of
from shakedown.host.local import LocalHost
from shakedown.isolate.factors import factors_of
from shakedown.jobs.reading import Reading, shipped_table
from shakedown.jobs.rungs import DUMMY, TINY, WEIGHTS, base_of, ladder_of
from shakedown.rungs import PASSED, SCRIPT_RUNGS, script_text
from shakedown.trial import Subject, run_trial

CONFIG = {
    "num_hidden_layers": 4,
    "layer_types": ["full", "full", "sliding", "full"],
    "first_k_dense_replace": 2,
}


def base_for(folder: Path, *words: str, engine="vllm", config=CONFIG):
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    start = {
        "vllm": ("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        "sglang": ("python3", "-m", "sglang.launch_server", "--model-path", str(folder)),
        "generic": ("python3", "serve.py"),
    }[engine]
    launch = Launch(argv=(*start, *words), env={"PATH": os.environ["PATH"]}, cwd=folder)
    table = shipped_table(engine_named(engine))
    command = parse(launch, table, engine=engine_named(engine))
    reading = Reading(command=command, table=table, port=8000, target=None)
    return base_of(reading, folder / "rungs"), factors_of(command, table)


def names(base, factors):
    return [rung.name for rung in ladder_of(base, factors).rungs]


def test_the_rungs_of_one_gpu_and_of_two_ranks(tmp_path):
    one = names(*base_for(tmp_path))
    assert one == ["torch", "matmul", "triton", "graph", "engine kernels", "attention", TINY, DUMMY]
    assert "jit" in names(*base_for(tmp_path, engine="sglang"))
    two = names(*base_for(tmp_path, "--tensor-parallel-size", "2"))
    assert two[two.index("attention") + 1 :][:2] == ["peers", "all-reduce"]
    assert "triton" not in names(*base_for(tmp_path, "--device", "cpu", engine="sglang"))


@pytest.mark.parametrize("words", [(), ("--speculative-algorithm", "EAGLE3")])
def test_the_stand_in_of_a_drafter_that_reads_states_has_all_layers(tmp_path, words):
    base, _ = base_for(tmp_path, *words, engine="sglang")
    argv = base.stand_in(base.command.launch).argv
    assert argv[-2:] == ("--load-format", "dummy") if words else "num_hidden_layers" in argv[-1]


def test_a_server_that_no_table_knows_has_no_rungs(tmp_path):
    base, factors = base_for(tmp_path, engine="generic")
    ladder = ladder_of(base, factors)
    assert (ladder.rungs, ladder.beyond) == ((), "")


def test_a_model_that_is_no_folder_here_is_not_made_smaller(tmp_path):
    base, factors = base_for(tmp_path, config=None)
    assert TINY not in names(base, factors)
    assert ladder_of(base, factors).beyond == WEIGHTS


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--hf-overrides"), ("sglang", "--json-model-override-args")]
)
def test_the_tiny_model_keeps_the_users_overrides_and_a_layer_of_each_sort(tmp_path, engine, flag):
    base, _ = base_for(tmp_path, flag, '{"rope_theta": 5}', engine=engine)
    launch = base.launch(TINY, base.command.launch)
    assert launch.argv[-4:-1] == ("--load-format", "dummy", flag)
    told = json.loads(launch.argv[-1])
    assert told == {"rope_theta": 5, "num_hidden_layers": 3, "layer_types": ["full", "full", "sliding"]}


def test_a_script_is_run_by_the_launchs_interpreter_in_its_environment(tmp_path):
    base, _ = base_for(tmp_path, "--tensor-parallel-size", "2", "--attention-backend", "FLASHINFER")
    assert base.write_script("attention")
    safe = replace(base.command.launch, argv=(*base.command.launch.argv, "--attention-backend=TRITON_ATTN"))
    launch = base.launch("attention", safe)
    assert launch.argv == ("python3", str(tmp_path / "rungs" / "rung_attention.py"))
    told = json.loads(launch.env["SHAKEDOWN_RUNG"])
    del told["networks"]  # which every script is told
    assert told == {"device": "cuda", "ranks": 2, "engine": "vllm", "attention": "TRITON_ATTN"}
    assert Path(launch.argv[1]).read_text() == script_text("rung_attention")
    assert not base.write_script(DUMMY)


def test_other_backends_are_offered_as_cures_but_not_the_one_that_fails(tmp_path):
    base, factors = base_for(tmp_path, "--attention-backend", "FLASHINFER")
    offered = [tokens for _, tokens in ladder_of(base, factors).cures]
    assert ("--attention-backend", "FLASH_ATTN") in offered
    assert ("--attention-backend", "FLASHINFER") not in offered


@pytest.mark.parametrize("rung", SCRIPT_RUNGS, ids=lambda rung: rung.name)
def test_every_script_is_there_and_compiles(rung):
    compile(script_text(rung.script), rung.script, "exec")


# --- run and judged like a launch ------------------------------------------------------------------------


def judged(folder: Path, body: str):
    script = folder / "rung.py"
    script.write_text(body)
    launch = Launch(argv=(sys.executable, str(script)), env=dict(os.environ), cwd=folder)
    subject = Subject(
        title="rung", launch=launch, engine=engine_named("generic"), port=None, target=None, passed_log=PASSED
    )
    return run_trial(LocalHost(), subject, folder / "run", lambda assessment: None).judgement


def test_a_rung_passes_by_saying_so_and_an_exit_code_proves_nothing(tmp_path):
    passed = judged(tmp_path, f"print('{PASSED} sum')")
    assert passed.verdict is Verdict.SERVES
    (tmp_path / "second").mkdir()
    silent = judged(tmp_path / "second", "print('done')")
    assert silent.verdict is Verdict.CRASHED


def test_a_rung_that_fails_names_its_own_error(tmp_path):
    failed = judged(tmp_path, "raise RuntimeError('no kernel image is available')")
    assert failed.verdict is Verdict.CRASHED
    assert "no kernel image" in failed.cause


@pytest.mark.slow
def test_ranks_meet_and_sum_in_the_real_script(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "rung.py"
    script.write_text(script_text("rung_all_reduce"))
    told = {"SHAKEDOWN_RUNG": json.dumps({"ranks": 2, "device": "cpu"})}
    launch = Launch(argv=(sys.executable, str(script)), env={**os.environ, **told}, cwd=tmp_path)
    subject = Subject(
        title="rung", launch=launch, engine=engine_named("generic"), port=None, target=None, passed_log=PASSED
    )
    assert run_trial(LocalHost(), subject, tmp_path / "run", lambda assessment: None).judgement.serves


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_is_named_while_the_others_wait_for_it(tmp_path, dead):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed.py").write_text(
        "import os, time\n"
        "def init_process_group(*_, **__):\n"
        f"    os._exit(7) if os.environ['RANK'] == '{dead}' else time.sleep(50)\n"
    )
    script = tmp_path / "rung.py"
    script.write_text(script_text("rung_all_reduce"))
    told = {"SHAKEDOWN_RUNG": json.dumps({"ranks": 3, "device": "cpu"}), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, **told}, capture_output=True, text=True, timeout=30
    )
    assert f"RungFailed: rank {dead} ended with code 7" in done.stderr


def test_ranks_are_what_the_layout_flags_multiply_to(tmp_path):
    base, _ = base_for(tmp_path, "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2")
    assert base.ranks == 8
    assert needs_of(base.command, 8000).speculation is None


@pytest.mark.parametrize(
    ("engine", "words", "here"),
    [
        ("vllm", "--tensor-parallel-size 4 --data-parallel-size 2", 8),
        ("vllm", "--tensor-parallel-size 8 --pipeline-parallel-size 2 --nnodes 2", 8),
        ("vllm", "--tensor-parallel-size 2 --data-parallel-size 8 --data-parallel-size-local 4", 8),
        ("vllm", "--tensor-parallel-size 2 --data-parallel-size 8 --data-parallel-rank 3", 2),
        ("vllm", "--tensor-parallel-size 16 --distributed-executor-backend ray", 0),
        ("sglang", "--tp-size 16 --nnodes 2", 8),
        ("sglang", "--tp-size 8 --dp-size 8 --enable-dp-attention", 8),
    ],
)
def test_the_ranks_of_this_machine_are_those_that_its_gpus_must_hold(tmp_path, engine, words, here):
    base, _ = base_for(tmp_path, *words.split(), engine=engine)
    assert needs_of(base.command, 8000).ranks_here == here


def test_weights_that_a_flag_makes_smaller_are_not_counted_as_stored(tmp_path):
    base, _ = base_for(tmp_path)
    assert needs_of(base.command, 8000).weights_as_stored
    base, _ = base_for(tmp_path, "--quantization", "fp8")
    assert not needs_of(base.command, 8000).weights_as_stored
