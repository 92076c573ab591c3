"""What else there is to see of a failed launch while its processes still stand: kernel log, NCCL, GPU state.

It signals nothing; a CUDA core dump is taken only where the launch itself allows it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from shakedown.core import Command, Evidence, Launch, Missing
from shakedown.host.gpu import NO_DRIVER
from shakedown.rungs import AFTERWARDS, Script, parameters, read_evidence, script_text
from shakedown.trial import Failed

TOLD = ("NCCL_", "TORCH_", "CUDA_")  # variables that say where such evidence is


def looking_after(
    command: Command, launch: Launch | None, python: str = sys.executable
) -> Callable[[Failed], tuple[Evidence, ...]]:
    """`launch` where a search has changed that of the command; `python` runs where it names none itself."""
    interpreter = command.interpreter or (python, "-")
    env = launch.env if launch else command.env

    def look(failed: Failed) -> tuple[Evidence, ...]:
        chosen = [script for script in AFTERWARDS if not script.gpu or holds_gpu(failed)]
        return tuple(
            seen for script in chosen for seen in run_script(interpreter, command, env, failed, script)
        )

    return look


def holds_gpu(failed: Failed) -> bool:
    """Also where the driver does not say, as in a container that does not know the host's process numbers."""
    uses = failed.host.gpu_use(failed.pids)
    return NO_DRIVER not in uses.why if isinstance(uses, Missing) else bool(uses)


def run_script(
    interpreter: tuple[str, ...], command: Command, env: Mapping[str, str], failed: Failed, script: Script
) -> tuple[Evidence, ...]:
    told = {
        "pids": list(failed.pids),
        "age_s": failed.now_s,
        "env": {name: value for name, value in env.items() if name.startswith(TOLD)},
    }
    done = failed.host.execute(
        interpreter,
        env={**env, **parameters(told)},
        cwd=command.launch.cwd,
        stdin=script_text(script.name),
        deadline_s=script.deadline_s,
    )
    return read_evidence(script, done, failed.now_s)
