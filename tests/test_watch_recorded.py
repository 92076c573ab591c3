"""Every recorded launch of a real engine, played back, gets the verdict, phase and cause it had."""

import pytest
from replaying import play, recorded

from shakedown.core import Verdict, Wait
from shakedown.watch import Limits, State, learn

ROWS = {row["id"]: row for row in recorded()}

# What the one line must contain, in the words of the log.
CAUSES = {
    "C01-console-script": "PackageNotFoundError: No package metadata was found for vllm",
    "C02-unknown-flag": "error: unrecognized arguments: --no-such-flag",
    "C03-missing-model": "HFValidationError: Repo id must use",
    "C04-tp2-heads9": "attention heads (9) must be divisible by tensor parallel size (2)",
    "C05-maxlen-too-large": "max_model_len (16384) is greater than the derived max_model_len",
    "C06-dtype-bad": "error: argument --dtype: invalid choice: 'int8'",
    "C08-kv-too-big": "ValueError: Available memory on node 0",
    "C09-port-in-use": "Address already in use",
    "C10-safetensors-truncated": "metadata, file not fully covered",
    "C12-no-weights": "Cannot find any model weights",
    "C16-hub-id-offline": "LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
    "C17-loader-bad": "Load format `gguf` is not supported",
    "C18-quant-bad": "Cannot find the config file for awq",
    "D03-suffix-eager": "ImportError: Arctic Inference is required",
    "H07-fifo-tokenizer": "Couldn't instantiate the backend tokenizer",
    "H13-kill-enginecore-after-ready": "EngineDeadError",
    "H14-kill-worker-loading": "Worker died without an exception",
    "H23-worker-stop-exec-timeout20": "TimeoutError",
    "X07-devshm-64k": "Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required",
    "X12-pp2": "Not enough allowed NUMA nodes",
    "X18-sglang-cpu": "ModuleNotFoundError: No module named 'vllm'",
    "X22-pp2-nobind-hostip-unroutable": "AssertionError in sync_and_gather_intermediate_tensors",
    "X23-pp2-nobind-gloo-bad": "gloo/transport/tcp",
    "X25-sglang-eagle3-shim": "RuntimeError: 0 active drivers",
    "X26-sglang-shim-defaults": "NotImplementedError: Could not run 'sglang::unified_attention",
    "X28-sglang-dist-absent": "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set",
}
# Where the label and the log may differ in good faith: the worker of H04 and H14 was hit 0.25 s after
# "Loading weights took", vLLM on a CPU sizes its cache in a frame in which a GPU compiles, and the draft
# of X25 died in triton's first use.
PHASES = {
    "H04-worker-sigstop-load": {"weight_load", "post_load"},
    "H14-kill-worker-loading": {"weight_load", "post_load"},
    "C08-kv-too-big": {"kv_cache", "compile"},
    "X25-sglang-eagle3-shim": {"weight_load", "post_load", "kv_cache"},
}
HUNG = {
    "H01-nnodes2-master-alone": (Wait.WAITING, "VLLM::Worker", "_create_c10d_store"),
    "H02-nnodes2-headless-no-master": (Wait.WAITING, "VLLM::Worker", "_create_c10d_store"),
    "H04-worker-sigstop-load": (Wait.STOPPED, "VLLM::Worker", ""),
    "H05-worker-sigstop-after-ready": (Wait.STOPPED, "VLLM::Worker", ""),
    "H06-fifo-weights": (Wait.BLOCKED_IO, "VLLM::Worker", "safetensors_weights_iterator"),
    "H11-stdout-pipe-full": (Wait.BLOCKED_IO, "python", "StreamHandler.emit"),
    "H25-fuse-hang-probe-tools": (Wait.BLOCKED_IO, "VLLM::Worker", ""),
}


def ids(*verdicts: str) -> list[str]:
    return [name for name, row in ROWS.items() if row["verdict"] in verdicts]


@pytest.mark.parametrize("name", [*ids("crashed"), "C09-port-in-use"])
def test_a_recorded_crash_is_crashed_with_its_first_cause(name):
    assessment, _, _ = play(ROWS[name])
    judgement = assessment.judgement
    assert judgement is not None
    assert judgement.verdict is Verdict.CRASHED
    assert judgement.phase in PHASES.get(name, {ROWS[name]["phase"]})
    assert CAUSES[name] in judgement.cause
    assert "\n" not in judgement.cause
    assert judgement.exited


def test_every_recorded_crash_has_its_own_fingerprint():
    prints = {}
    for name in ids("crashed"):
        prints.setdefault(play(ROWS[name])[0].judgement.fingerprint, []).append(name)
    assert [names for names in prints.values() if len(names) > 1] == []


@pytest.mark.parametrize("name", ids("hung"))
def test_a_recorded_hang_is_hung_and_names_the_odd_process(name):
    assessment, _, _ = play(ROWS[name])
    judgement = assessment.judgement
    assert judgement is not None
    wait, suspect, frame = HUNG[name]
    assert (judgement.verdict, judgement.wait, judgement.suspect.name) == (Verdict.HUNG, wait, suspect)
    assert judgement.suspect.frame.startswith(frame)
    assert judgement.phase in PHASES.get(name, {ROWS[name]["phase"]})
    assert assessment.quiet_s <= 45, "said too late after the last true progress"
    assert judgement.would_change


def test_the_same_hang_has_the_same_fingerprint_and_another_has_not():
    prints = {name: play(ROWS[name])[0].judgement.fingerprint for name in HUNG}
    assert prints["H01-nnodes2-master-alone"] == prints["H02-nnodes2-headless-no-master"]
    assert (
        len({prints[n] for n in ("H01-nnodes2-master-alone", "H06-fifo-weights", "H11-stdout-pipe-full")})
        == 3
    )
    assert not any(character.isdigit() for character in prints["H06-fifo-weights"])


@pytest.mark.parametrize("name", ids("serves", "wrong"))
@pytest.mark.parametrize("step_s", [1.0, 0.5])
def test_a_recorded_good_start_is_never_final_before_our_own_stop(name, step_s):
    assessment, watcher, host = play(ROWS[name], step_s=step_s)
    assert assessment.judgement is None
    assert assessment.state is not State.SUSPECT
    assert assessment.phase.order >= 11, "at least ready"
    for _ in range(30):  # what the shutdown prints (EngineDeadError among it) counts for nothing
        host.advance(1.0)
        assert watcher.step().judgement is None


@pytest.mark.parametrize("name", [name for name in ids("serves") if name[0] in "GX"])
def test_a_compiled_start_silent_for_a_minute_is_not_even_suspected(name):
    """61 s without a log line; budgets as learnt from the same start are tight and must still hold."""
    _, first, _ = play(ROWS[name])
    assessment, second, _ = play(ROWS[name], Limits(learnt=learn([first.silences])))
    assert assessment.judgement is None
    assert max(second.silences.values()) < 15


def test_a_known_hang_is_said_early():
    row = ROWS["H06-fifo-weights"]
    first, _, _ = play(row)
    again, _, _ = play(row, Limits(expected=first.judgement.signature))
    assert again.judgement.signature == first.judgement.signature
    assert again.now_s <= first.now_s - 10


def test_another_hang_than_the_known_one_is_not_said_early():
    known, _, _ = play(ROWS["H06-fifo-weights"])
    plain, _, _ = play(ROWS["H01-nnodes2-master-alone"])
    hinted, _, _ = play(ROWS["H01-nnodes2-master-alone"], Limits(expected=known.judgement.signature))
    assert hinted.now_s == plain.now_s


def test_phases_of_a_real_start_are_timed_per_rank_and_in_order():
    assessment, _, _ = play(ROWS["D00-nospec-eager"])
    worker = [span for span in assessment.phases if span.rank.startswith("Worker")]
    assert [span.phase.order for span in worker] == sorted(span.phase.order for span in worker)
    assert all(span.ended_s is None or span.ended_s >= span.started_s for span in assessment.phases)
    assert {"weight_load", "kv_cache"} & {span.phase.value for span in worker}


def test_stacks_are_not_taken_while_a_start_moves():
    _, _, host = play(ROWS["G01-default-cold"])
    assert host.asked_for_stacks == 0
