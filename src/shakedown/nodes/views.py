"""The nouns of blame: a node as it stands, and what is wrong with the one to blame.

Nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from shakedown.core import Judgement, Phase, PhaseSpan, Verdict
from shakedown.nodes.file import Node
from shakedown.nodes.network import Network
from shakedown.watch import State

UNREACHABLE_S = 120.0  # a dropped connection is no death: ssh gives up after as long


class Kind(StrEnum):
    """What is wrong with the node to blame."""

    NOT_STARTED = "not started"
    DEAD = "dead"
    SILENT = "silent"
    LATE = "late"
    CUT_OFF = "cut off"  # it and another cannot reach each other
    UNREACHABLE = "unreachable"  # by us
    NOBODY = "nobody"  # all stand alike


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One node as it stands. All times are seconds of our own clock since the launch began.

    `judged_s`: when its own watch knew. `error_s`: of the first error in its log, `uncertain_s` how far the
    comparison with our clock may be wrong. `refused`: why it could not be started. `odd`: settings that do
    not fit its network.
    """

    node: Node
    phase: Phase = Phase.IMPORT
    state: State = State.MOVING
    judgement: Judgement | None = None
    judged_s: float = 0.0
    error_s: float | None = None
    moved_s: float = 0.0
    uncertain_s: float = 0.0
    unreachable_s: float = 0.0
    refused: str = ""
    network: Network | None = None
    phases: tuple[PhaseSpan, ...] = ()
    clock: str = ""  # how its clock stands to ours, in words
    odd: tuple[str, ...] = field(default_factory=tuple)

    @property
    def verdict(self) -> Verdict | None:
        return self.judgement.verdict if self.judgement else None

    @property
    def still(self) -> bool:
        """Judged, or not to be seen: nothing it may yet do can be waited for."""
        return self.judgement is not None or self.unreachable_s > UNREACHABLE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """`view` None: nobody more than the others. `why` completes "node beta (rank 1) …".

    `fingerprint` "": that of what the node itself showed.
    """

    kind: Kind
    view: View | None
    why: str
    fingerprint: str = ""
