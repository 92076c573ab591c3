"""What people read: whole reports, as they are pasted into an issue or end a command."""

from dataclasses import replace

from report_samples import RUN, SEARCH, SERVES, TRIALS

from shakedown.core import RecordState
from shakedown.report import isolate_report, isolate_summary, run_report, run_summary, show
from shakedown.report.again import next_steps, rerun

ISOLATE_REPORT = r"""
# hung (waiting) in dist_init: the cause is `nodes (--nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port…`

vllm 0.32.0 on box, 2025-11-29T16:14:02Z, `s251129-161402-8k00`

- **Verdict** hung (waiting) in dist_init
- **First cause** `waits in init_process_group for 1 of 2 nodes that never joins`
- **Suspect** `VLLM::EngineCore (pid 4711) at init_process_group (distributed_c10d.py:1710), wait channel futex_wait_queue`

**Minimal cause** (proven, 3 of 3 checks)

| factor | fails as | passes as |
|---|---|---|
| `nodes` | `--nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port 29501 --pipeline-parallel-size 2` | left out |

**Proof**

- the cause alone fails the same way: **yes** (`t251129-161402-8k3f`, `t251129-161546-1b22`)
- with one part of it less it does not: **yes** (`t251129-161504-0a11`): it serves
- your command with the change serves: **yes** (`t251129-161650-2c33`)

**Working command**

- --nnodes 2 and what hangs on it: removed

```sh
VLLM_LOGGING_LEVEL=INFO OMP_NUM_THREADS=2 vllm serve '/models/smollm2 135m' \
  --port 8000 --max-model-len 2048 --dtype bfloat16 --seed 7 \
  --api-key "${API_KEY:?}" --block-size 32
```

- **Cleared** `--block-size`, `--seed`, `OMP_NUM_THREADS`, `cuda graphs`
- **Another failure, filed apart** `t251129-161700-3d44`: `` crashed in config: ValueError: world size (2) is not divisible by nnodes | <script>@all `x` ``
- **Not known** whether other versions or machines do the same: only vllm 0.32.0 on box was tried

**Run it again** (4 launches, 3 min 28 s; `shakedown show s251129-161402-8k00` tells each)

```sh
cd /home/me/serving
VLLM_LOGGING_LEVEL=INFO OMP_NUM_THREADS=2 shakedown isolate -- vllm serve \
  '/models/smollm2 135m' --port 8000 --max-model-len 2048 --nnodes 2 \
  --node-rank 0 --master-addr 127.0.0.1 --master-port 29501 \
  --pipeline-parallel-size 2 --dtype bfloat16 --seed 7 \
  --api-key "${API_KEY:?}" --block-size 32
```

Secret variables that were set (values are not kept): `HF_TOKEN`
"""  # noqa: E501

ISOLATE_SUMMARY = r"""
hung (waiting) in dist_init: cause proven
  first cause  waits in init_process_group for 1 of 2 nodes that never joins
  cause        proven, 3 of 3 checks: nodes (--nnodes 2 --node-rank 0
               --master-addr 127.0.0.1 --master-port 29501
               --pipeline-parallel-size 2)
  proof        the cause alone fails the same way: yes (t251129-161402-8k3f,
               t251129-161546-1b22)
               with one part of it less it does not: yes (t251129-161504-0a11),
               it serves
               your command with the change serves: yes (t251129-161650-2c33)
  change       --nnodes 2 and what hangs on it: removed
  this serves:

    VLLM_LOGGING_LEVEL=INFO OMP_NUM_THREADS=2 vllm serve \
      '/models/smollm2 135m' --port 8000 --max-model-len 2048 --dtype bfloat16 \
      --seed 7 --api-key "${API_KEY:?}" --block-size 32

  cleared      --block-size, --seed, OMP_NUM_THREADS, cuda graphs
  other        t251129-161700-3d44: crashed in config: ValueError: world size
               (2) is not divisible by nnodes | <script>@all `x`
  not known    whether other versions or machines do the same: only vllm 0.32.0
               on box was tried
  cost         4 launches in 3 min 28 s
  next         shakedown report s251129-161402-8k00 --output report.md
  recorded     s251129-161402-8k00 (shakedown show s251129-161402-8k00 tells
               each launch)
"""

RUN_SUMMARY = r"""
hung (waiting) in dist_init after 61 s
  first cause  waits in init_process_group for 1 of 2 nodes that never joins
  suspect      VLLM::EngineCore (pid 4711) at init_process_group
               (distributed_c10d.py:1710), wait channel futex_wait_queue
  phases       import 9.1 s · config 3.9 s · dist_init 48 s, not finished
  evidence     44 s progress: no hard progress of any process for 30 s
               49 s stack: init_process_group <- init_distributed_environment <-
               init_device
               59 s stack: the same three times, 5 s apart; 0.4 % of a core
  would change a new log template, a rise of memory or a byte on a socket within
               the last 45 s
  log          /state/runs/t251129-160000-rrrr
  next         shakedown isolate -- CMD, with the same CMD
  recorded     t251129-160000-rrrr
"""


def test_an_isolate_report_says_cause_proof_cure_and_what_is_not_known():
    assert isolate_report(SEARCH, TRIALS) == ISOLATE_REPORT.lstrip()


def test_isolate_ends_with_the_command_that_serves():
    assert isolate_summary(SEARCH, TRIALS) == ISOLATE_SUMMARY.strip().split("\n")


def test_run_ends_with_what_happened_where_and_why():
    assert run_summary(RUN) == RUN_SUMMARY.strip().split("\n")


def test_a_run_report_has_phases_suspect_evidence_and_a_way_to_do_it_again():
    report = run_report(RUN)
    assert report.startswith("# hung (waiting) in dist_init after 61 s\n")
    assert "| dist_init | 48 s, not finished |" in report
    assert "**Suspect** `VLLM::EngineCore (pid 4711) at init_process_group" in report
    assert "- 49 s, stack, pid 4711: `init_process_group <- " in report
    assert "**What would have changed it** a new log template" in report
    assert "cd /home/me/serving\n" in report


def test_the_chain_goes_from_what_was_observed_to_what_is_next():
    lines = show(SEARCH, TRIALS)
    sections = [line for line in lines if line and not line.startswith((" ", "s2"))]
    assert sections == ["observed", "suspected", "tried", "concluded", "next"]
    at = lines.index("   2  t251129-161504-0a11  safe mode, nothing kept")
    assert lines[at + 2 : at + 4] == [
        "      showed   serves after 41 s",
        "      so       the flags are to blame",
    ]


def test_what_ran_on_another_machine_is_run_again_there():
    far = replace(RUN, facts=(("over_via", "docker exec -i C"),))
    assert " ".join(rerun(far)).startswith("shakedown run --via 'docker exec -i C' -- vllm serve")
    assert next_steps(far) == ("shakedown isolate --via 'docker exec -i C' -- CMD, with the same CMD",)
    attached = replace(RUN, facts=(("attached", "1"), ("over_ssh", "me@box"), ("pid", "7")))
    assert next_steps(attached)[0] == "shakedown isolate --host me@box --pid 7"


def test_our_own_options_and_the_ledger_are_given_again():
    facts = {
        "options": "--port 8 --ready-url 'http://[redacted]@h/' --ready-log 'is ready' --deadline 6s --keep",
        "ledger": "/mine/my ledger.db",
    }
    record = replace(RUN, facts=tuple(facts.items()))
    options = "--port 8 --ready-url \"http://${READY_URL:?}@h/\" --ready-log 'is ready'"
    ledger = "--ledger '/mine/my ledger.db'"
    again = " ".join(line.strip().removesuffix(" \\") for line in rerun(record))
    assert f"shakedown run {options} --deadline 6s --keep {ledger} -- vllm serve" in again
    assert next_steps(record) == (f"shakedown isolate {options} {ledger} -- CMD, with the same CMD",)
    kept = replace(record, judgement=SERVES, kept_running=True)
    assert next_steps(kept) == (f"shakedown stop {RUN.id} {ledger}",)
    search = replace(SEARCH, facts=tuple(facts.items()))
    interrupted = replace(search, conclusion=None, state=RecordState.INTERRUPTED)
    assert next_steps(interrupted) == (f"shakedown isolate --resume {SEARCH.id} {ledger}",)
    assert f"shakedown show {SEARCH.id} {ledger}" in " ".join(" ".join(isolate_summary(search, ())).split())
    assert f"shakedown show {SEARCH.id} {ledger}" in isolate_report(search, ())
