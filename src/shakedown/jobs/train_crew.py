"""Training in several processes of this machine: `draft train` under torchrun, its answer read back.

It never trains by itself, and ends what it started when it is interrupted.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shakedown.drafter.plan import TrainPlan
from shakedown.errors import DataProblem, EnvironmentProblem
from shakedown.jobs.result import ExitCode, JobResult

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
GRACE_S = 30.0  # torchrun hands TERM on and waits for its processes itself


def train_in_crew(target: str, states: Path, out: Path, plan: TrainPlan, processes: int) -> JobResult:
    """Raises DataProblem with what the processes said, EnvironmentProblem where they said nothing."""
    argv = command(target, states, out, plan, processes)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent
    ) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            process.terminate()
            process.wait(GRACE_S)
            raise
    return read_result(said, process.returncode, processes)


def end_with_parent() -> None:
    """In the child: TERM from the kernel when we are killed, which torchrun hands on to its processes."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def command(target: str, states: Path, out: Path, plan: TrainPlan, processes: int) -> list[str]:
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    argv += ["-m", "shakedown", "draft", "train", "--json", "--target", target]
    argv += ["--states", str(states), "--out", str(out)]
    argv += ["--steps", str(plan.steps), "--epochs", str(plan.epochs), "--draft-vocab", str(plan.draft_vocab)]
    argv += ["--learning-rate", str(plan.learning_rate), "--pack-rows", str(plan.pack_rows)]
    argv += ["--seed", str(plan.seed), "--decay", str(plan.decay)]
    argv += ["--teacher-temperature", str(plan.teacher_temperature)]
    argv += ["--freeze-head"] if plan.freeze_head else []
    argv += ["--batch-packs", str(plan.batch_packs)] if plan.batch_packs else []
    argv += ["--intermediate", str(plan.intermediate)] if plan.intermediate else []
    return argv + (["--from", plan.start] if plan.start else [])


def read_result(said: str, code: int, processes: int) -> JobResult:
    try:
        document: Mapping[str, Any] = json.loads(said)
    except ValueError:
        raise EnvironmentProblem(
            f"training in {processes} processes ended with code {code} and no answer: {said[-200:]!r}",
            "what they said is above; `processes = 1` under [train] trains in one",
        ) from None
    if str(document.get("error", "")).startswith("interrupted"):  # the first one by torchrun, not by us
        raise EnvironmentProblem(
            f"training in {processes} processes was ended before the first of them could answer",
            "another of them failed, and said so above, or somebody ended them",
        )
    if "error" in document:
        raise DataProblem(str(document["error"]), *map(str, document.get("hints", ())))
    line = f"{document['checkpoint']}: {document['steps']:,} steps in {processes} processes"
    return JobResult(document=dict(document), lines=[line], exit_code=ExitCode.GOOD)
