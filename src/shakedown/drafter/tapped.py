"""An engine's own aux states, as its drafter was handed them: steps in, one text with its states out.

It starts no engine, and a token's states are those of the step that kept it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path

import torch

from shakedown.drafter.rungs import Ladder
from shakedown.errors import DataProblem

PLUGIN = "shakedown_tap"
MISSING = -1  # the token of a place that no step of the request computed
# what torch raises for a file that it did not write, and what its own have not
UNREADABLE = (OSError, EOFError, LookupError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """How an engine finds plug-ins: `group` of entry points, and the variable that names those allowed."""

    module: str
    group: str
    allowed: str


PLUGGED = {
    "vllm": Plugged(module="vllm_tap.py", group="vllm.general_plugins", allowed="VLLM_PLUGINS"),
    "sglang": Plugged(module="sglang_tap.py", group="sglang.srt.plugins", allowed="SGLANG_PLUGINS"),
}


class Stage(StrEnum):
    """How a token's states were computed. A step of several new tokens verifies drafts.

    A prompt whose beginning came from the prefix cache was computed in pieces, too.
    """

    PREFILL = "prefill"
    CHUNKED = "chunked prefill"
    DECODE = "plain decode"
    VERIFY = "verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a step of the engine computed for one request: `tokens`, `positions` [n], `aux` [slots, n, H]."""

    request: str
    tokens: torch.Tensor
    positions: torch.Tensor
    aux: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tapped:
    """One request as far as its states go: all its tokens but the last one generated.

    `width` and `first` [T]: how many tokens the step held that kept it, and at which position that began.
    """

    tokens: torch.Tensor
    aux: torch.Tensor
    width: torch.Tensor
    first: torch.Tensor

    def stages(self, prompt: int) -> dict[Stage, torch.Tensor]:
        """bool [T] of each stage; `prompt`: the tokens of the prompt."""
        at = torch.arange(len(self.tokens))
        within = at < prompt
        whole = (self.first == 0) & (self.width >= prompt)
        return {
            Stage.PREFILL: within & whole,
            Stage.CHUNKED: within & ~whole,
            Stage.DECODE: ~within & (self.width == 1),
            Stage.VERIFY: ~within & (self.width > 1),
        }


def install_plugin(folder: Path, environment: Mapping[str, str], steps: Path, engine: str) -> dict[str, str]:
    """Writes the plug-in to `folder`, as the engine finds them, and gives the variables that switch it on."""
    plugged = PLUGGED[engine]
    module = (resources.files("shakedown.drafter.inside") / plugged.module).read_text()
    (folder / f"{PLUGIN}.py").write_text(module)
    about = folder / f"{PLUGIN}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{plugged.group}]\n{PLUGIN} = {PLUGIN}:register\n")
    before = environment.get("PYTHONPATH")
    added = {"PYTHONPATH": f"{folder}:{before}" if before else str(folder), "SHAKEDOWN_TAP": str(steps)}
    allowed = environment.get(plugged.allowed)
    if allowed is not None:
        added[plugged.allowed] = f"{allowed},{PLUGIN}".strip(",")
    return added


def read_steps(folder: Path) -> Iterator[Step]:
    """In the order in which the engine took them. Raises DataProblem for a file that is none of ours."""
    for path in sorted(folder.glob("step-*.pt"), key=lambda path: int(re.findall(r"\d+", path.name)[0])):
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            bounds = torch.tensor([0, *found["counts"]]).cumsum(0).tolist()
            for name, begin, end in zip(found["names"], bounds, bounds[1:], strict=False):
                yield Step(
                    request=name,
                    tokens=found["tokens"][begin:end],
                    positions=found["positions"][begin:end],
                    aux=found["aux"][:, begin:end],
                )
        except UNREADABLE as problem:
            raise DataProblem(f"{path} cannot be read as a step of the engine: {problem}") from None


def assemble(steps: Sequence[Step], texts: Sequence[Sequence[int]]) -> list[Tapped | None]:
    """For each text (prompt and answer) the request that made it; None where no request did.

    A later step overwrites the rows of drafts that were rejected.
    """
    requests: dict[str, list[Step]] = {}
    for step in steps:
        requests.setdefault(step.request, []).append(step)
    built = [put_together(of_one) for of_one in requests.values()]
    found: list[Tapped | None] = []
    for text in texts:
        wanted = torch.tensor(text[:-1], dtype=torch.int32)
        of_text = [each for each in built if begin_of(each) < agreed(each, wanted) == len(wanted)]
        found.append(filled(cut(of_text[-1], len(wanted)), wanted, built) if of_text else None)
    return found


def begin_of(found: Tapped) -> int:
    """Where what its steps computed begins: after what the prefix cache gave."""
    return int((found.tokens != MISSING).int().argmax())


def agreed(found: Tapped, wanted: torch.Tensor) -> int:
    """Up to where its tokens are the wanted ones, whatever a cached beginning held."""
    begin, length = begin_of(found), min(len(found.tokens), len(wanted))
    differing = (found.tokens[begin:length] != wanted[begin:length]).nonzero()
    return begin + int(differing[0]) if len(differing) else length


def filled(found: Tapped, wanted: torch.Tensor, others: Sequence[Tapped]) -> Tapped | None:
    """With the states of its cached beginning, from the requests that computed it; None where none did."""
    missing, reached = begin_of(found), 0
    tokens, aux, width, first = (x.clone() for x in (found.tokens, found.aux, found.width, found.first))
    for other in others:
        begin, end = begin_of(other), min(agreed(other, wanted), missing)
        if begin > reached or end <= begin:
            continue
        tokens[begin:end], aux[:, begin:end] = other.tokens[begin:end], other.aux[:, begin:end]
        width[begin:end], first[begin:end] = other.width[begin:end], other.first[begin:end]
        reached = max(reached, end)
    return Tapped(tokens=tokens, aux=aux, width=width, first=first) if reached >= missing else None


def put_together(steps: Sequence[Step]) -> Tapped:
    length = max(int(step.positions.max()) for step in steps) + 1
    slots, _, hidden = steps[0].aux.shape
    tokens = torch.full((length,), MISSING, dtype=torch.int32)
    aux = torch.full((slots, length, hidden), torch.nan, dtype=steps[0].aux.dtype)
    width, first = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.int64)
    for step in steps:
        at = step.positions.long()
        tokens[at], width[at], first[at] = step.tokens.int(), len(at), int(at[0])
        aux[:, at] = step.aux
    return Tapped(tokens=tokens, aux=aux, width=width, first=first)


def cut(found: Tapped, length: int) -> Tapped:
    return Tapped(
        tokens=found.tokens[:length],
        aux=found.aux[:, :length],
        width=found.width[:length],
        first=found.first[:length],
    )


def rows_of(ladder: Ladder, chosen: torch.Tensor) -> Ladder:
    """The ladder on those of its rows whose tokens are `chosen`, bool [T]."""
    kept = chosen[ladder.rows]
    return Ladder(
        rows=ladder.rows[kept],
        rungs=ladder.rungs[:, kept],
        noise=ladder.noise[:, kept],
        branches={rung: branch[kept] for rung, branch in ladder.branches.items()},
        norm_weight=ladder.norm_weight,
        norm_eps=ladder.norm_eps,
    )
