"""What a command sets: its flags and the variables that an engine reads, as the user gave them.

It never says which of them may be blamed, and keeps no secret in a text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shakedown.core import Command, Fit, FlagTable
from shakedown.redact import Redactor

ENGINES_AND_THEIRS = ("VLLM_", "SGLANG_", "NCCL_", "GLOO_", "CUDA_", "TORCH", "OMP_", "HF_")
KERNELS_AND_MEMORY = ("PYTORCH_", "FLASHINFER_", "TRITON_")  # three of 142 incidents were theirs
PREFIXES = ENGINES_AND_THEIRS + KERNELS_AND_MEMORY
_CREDENTIAL = re.compile(r"SECRET|PASSWORD|PASSWD|CREDENTIAL|(?:^|_)(?:TOKEN|KEY|KEY_ID)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A flag with all its uses, or a variable, as the user gave it."""

    name: str
    text: str
    value: str
    spelled: str = ""
    positions: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()  # to drop from the inherited environment

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("-")


def settings_of(command: Command, table: FlagTable | None) -> dict[str, Setting]:
    """By name, flags first. A factor's text goes on record: secrets are masked in it."""
    redactor = Redactor.of(command.env, command.launch.argv)
    return {**_flags(command, redactor), **_variables(command, table, redactor)}


def _flags(command: Command, redactor: Redactor) -> dict[str, Setting]:
    argv = redactor.redact_argv(command.launch.argv)
    found: dict[str, Setting] = {}
    for use in command.uses:
        before = found.get(use.name)
        positions = (before.positions if before else ()) + use.positions
        found[use.name] = Setting(
            name=use.name,
            text=" ".join(argv[at] for at in positions),
            value=" ".join(use.values),
            spelled=use.spelled.replace("_", "-"),
            positions=positions,
        )
    return found


def _variables(command: Command, table: FlagTable | None, redactor: Redactor) -> dict[str, Setting]:
    wrapped: dict[str, list[int]] = {}
    for name, _, position in command.assigned:
        wrapped.setdefault(name, []).append(position)
    named = table.env if table else frozenset()
    shown = redactor.redact_env(command.env)
    return {
        name: Setting(
            name=name,
            text=f"{name}={shown[name]}",
            value=value,
            positions=tuple(wrapped.get(name, ())),
            variables=(name,),
        )
        for name, value in sorted(command.env.items())
        if (name in named or name.startswith(PREFIXES)) and not _CREDENTIAL.search(name)
    }


def device_of(command: Command, table: FlagTable | None) -> str:
    """What the launch runs on: as it says itself, else as its interpreter found, else "cuda"."""
    stated = (command.value("--device") or "").partition(":")[0]
    if stated and stated != "auto":
        return stated
    return (table.device if table else "") or "cuda"


def is_harmless(fit: Fit, value: str) -> bool:
    if value == fit.safe:
        return True
    number = _number(value)
    return fit.harmless is not None and number is not None and fit.harmless[0] <= number <= fit.harmless[1]


def _number(text: str) -> float | None:
    """A number as engines read it: 32k is 32,000, 32K is 32,768."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text)
    if not found:
        return None
    scale = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return float(found[1]) * scale[found[2]]
