"""Questions to a launch that listens where nobody has said: it may be idle, and not hung, and serve there.

It never reads a process: who listens where is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from shakedown.core import Evidence, Gap, Identity, Judgement, Phase, Verdict, Wait
from shakedown.host.foreign import Listening
from shakedown.probe import Failure, Readiness, ReadyState, Target
from shakedown.trial.asking import READY_LOOK_S, Asking, Told
from shakedown.trial.marks import Stated
from shakedown.watch import Assessment

UNPLACED = frozenset({Phase.IMPORT, Phase.CONFIG, Phase.BIND})
NOT_REACHED = frozenset({Failure.REFUSED, Failure.UNREACHABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """How to find a launch where it listens. `ports`: what these processes listen on; `at`: how to ask there.

    `port` is where it was told to listen. `idles`: nothing tells its silence from that of an idle server,
    as the log of an engine that we know does.
    """

    ports: Callable[[tuple[Identity, ...]], Sequence[Listening]]
    at: Callable[[Listening], Target]
    port: int | None
    idles: bool


class SeekingAsking(Asking):
    """Asks where the launch listens before it is called hung, or nowhere to be found.

    What else listens in a launch (a rendezvous, a metrics page) is not to be disturbed: it is asked only
    where one port is all that there is, or is the one it was told.
    """

    def __init__(
        self,
        target: Target | None,
        ready_log: str | None,
        clock: Callable[[], float],
        stated: Stated | None = None,
        *,
        gaps: Callable[[], tuple[Gap, ...]] = tuple,
        elsewhere: Elsewhere,
        processes: Callable[[], tuple[Identity, ...]],
    ) -> None:
        super().__init__(target, ready_log, clock, stated, gaps=gaps)
        self._elsewhere, self._processes = elsewhere, processes
        self._kept: Judgement | None = None  # what stands unless the place that was found answers
        self._until_s = 0.0
        self._found: Evidence | None = None

    def step(self, assessment: Assessment, watcher: Told) -> Judgement | None:
        report = self.report
        if self._kept is not None and report is not None and report.says_not_ready:
            return replace(self._kept, evidence=(*report.evidence, *self._kept.evidence))
        judgement = super().step(assessment, watcher)
        if judgement is None or self._found is None:
            return judgement
        return replace(judgement, evidence=(self._found, *judgement.evidence))

    def doubt(self, judgement: Judgement, assessment: Assessment, watcher: Told) -> Judgement | None:
        """An idle server waits as a hung one does. One that was asked and gave no answer is hung."""
        waits = judgement.verdict is Verdict.HUNG and judgement.wait is Wait.WAITING
        if not (waits and self._elsewhere.idles) or judgement.phase is Phase.SERVING:
            return judgement  # a request of ours is what it does not answer
        if self._kept is not None:
            return self._after_the_look(assessment)
        if self._told:
            return judgement
        if self._seen is not None and self._seen.failure not in NOT_REACHED and not self._insists():
            return judgement
        watcher.request_cut()  # what it says of a stranger's request is no progress
        return self._seek(judgement, assessment)

    def _unreached(self, assessment: Assessment) -> Judgement | None:
        if self._kept is not None:
            return self._after_the_look(assessment)
        judgement = super()._unreached(assessment)
        return self._seek(judgement, assessment) if judgement is not None else None

    def _seek(self, judgement: Judgement, assessment: Assessment) -> Judgement | None:
        self._kept, self._until_s = judgement, assessment.now_s + 3 * READY_LOOK_S
        if self._insists():
            return None
        found = self._elsewhere.ports(self._processes())
        place = only_place(found, self._elsewhere.port)
        if place is not None:
            told = f"not at {shown(self._target)}" if self._target else "on a port that nobody had named"
            self._seen, self._target = None, self._elsewhere.at(place)
            text = f"it was asked at {self._target.base_url}, where it listens, {told}"
            self._found = Evidence(kind="found", text=text, at_s=assessment.now_s, pid=place.pid)
            if self._thread is None:
                self._begin()
            return None
        if not found or (judgement.verdict is Verdict.HUNG and judgement.phase not in UNPLACED):
            return judgement  # its stacks have shown a start that does not end
        return not_asked(found, judgement, assessment)

    def _insists(self) -> bool:
        """It answers, and the page that the user named does not say 2xx: there may be no such page."""
        named = self._target is not None and self._target.health_is_named
        return named and self._seen is not None and self._seen.failure is None

    def _after_the_look(self, assessment: Assessment) -> Judgement | None:
        seen, looked = self._seen, self._looked_at is self._target
        if self._answering or (looked and seen is not None and self._is_worth(seen)):
            return None
        return None if seen is None and assessment.now_s < self._until_s else self._kept

    def _is_worth_a_canary(self, seen: Readiness) -> bool:
        worth = super()._is_worth_a_canary(seen)
        return worth if self._kept is None else self._is_worth(seen)

    def _is_worth(self, seen: Readiness) -> bool:
        """A place that was only found must answer: what listens there may be no server."""
        return seen.state is ReadyState.ANSWERING or (self._insists() and seen.failure is None)


def shown(target: Target) -> str:
    """Without what a user may have put in front of the name."""
    return urlsplit(target.base_url).netloc.rpartition("@")[2]


def only_place(found: Sequence[Listening], told: int | None) -> Listening | None:
    """Where it can be known to be the server; an address of the older family first."""
    ports = {it.port for it in found}
    port = told if told in ports else next(iter(ports)) if len(ports) == 1 else None
    return min((it for it in found if it.port == port), key=lambda it: ":" in it.address, default=None)


def not_asked(found: Sequence[Listening], judgement: Judgement, assessment: Assessment) -> Judgement:
    """It listens on several ports, and which is the server's is not known."""
    numbers = [str(port) for port in sorted({it.port for it in found})]
    ports = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    hung = judgement.verdict is Verdict.HUNG
    cause = "nothing moves" if hung else judgement.cause
    return Judgement(
        verdict=Verdict.UNDECIDED,
        phase=Phase.READY if not hung else judgement.phase,
        cause=f"{cause}; it listens on ports {ports}, of which none was asked",
        fingerprint="listens unasked" if hung else judgement.fingerprint,
        phases=assessment.phases,
        evidence=assessment.evidence,
        would_change=f"an answer: --port N says which of {ports} is the server's",
        exited=False,
    )
