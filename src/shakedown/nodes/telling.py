"""The verdict on a launch of several nodes: the blamed node's own, with what is known of all of them.

It never decides who is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shakedown.core import Evidence, Judgement, PhaseSpan, Suspect, Verdict
from shakedown.nodes.views import Blame, Kind, View

WOULD_CHANGE = {
    Kind.NOT_STARTED: "its host, or its program, there",
    Kind.CUT_OFF: "an answer to a connection from one to the other",
    Kind.UNREACHABLE: "an answer of that host to us",
    Kind.LATE: "hard progress of that node",
}


def judge(blame: Blame, views: Sequence[View], now_s: float) -> Judgement:
    """Of a launch that has failed. What the nodes showed goes with it, the blamed one's first."""
    view = blame.view
    shown = view if view and view.judgement else _another(views)
    own = shown.judgement if shown else None
    verdict = _verdict(blame, own)
    base = own or Judgement(verdict=verdict, phase=view.phase if view else views[0].phase)
    return replace(
        base,
        verdict=verdict,
        wait=base.wait if verdict is Verdict.HUNG else None,
        phase=view.phase if view else min((it.phase for it in views), key=lambda phase: phase.order),
        cause=_cause(blame, shown, len(views)),
        fingerprint=_fingerprint(blame, own),
        suspect=_suspect(shown),
        phases=spans(views),
        evidence=(*standing(views, now_s), *evidence(views, first=view)),
        would_change=WOULD_CHANGE.get(blame.kind) or base.would_change,
        environment=base.environment or blame.kind in (Kind.NOT_STARTED, Kind.UNREACHABLE),
        node=view.node.name if view else "",
        rank=view.node.rank if view else None,
    )


def _another(views: Sequence[View]) -> View | None:
    """Where the node to blame shows nothing itself: one that died of it, else one that hangs of it."""
    failed = [it for it in views if it.judgement and not it.judgement.serves]
    return min(failed, key=lambda it: it.verdict is not Verdict.CRASHED, default=None)


def _cause(blame: Blame, shown: View | None, count: int) -> str:
    said = f"{blame.view.node.title if blame.view else f'{count} nodes:'} {blame.why}"
    if shown is None or shown is blame.view or shown.judgement is None:
        return said
    return f"{said}; {shown.node.title}: {shown.judgement.cause}"


def _suspect(shown: View | None) -> Suspect | None:
    found = shown.judgement.suspect if shown and shown.judgement else None
    return replace(found, name=f"{shown.node.name}: {found.name}") if shown and found else None


def _verdict(blame: Blame, own: Judgement | None) -> Verdict:
    if blame.kind in (Kind.NOT_STARTED, Kind.UNREACHABLE) or own is None:
        return Verdict.UNDECIDED
    return own.verdict


def _fingerprint(blame: Blame, own: Judgement | None) -> str:
    """Two failures are one where the same node fails in the same way."""
    where = blame.view.node.name if blame.view else "all nodes"
    shown = own.fingerprint if own and blame.kind in (Kind.DEAD, Kind.SILENT, Kind.NOBODY) else ""
    return f"{where}: {blame.fingerprint or shown or blame.kind.value}"


def judge_served(answer: Judgement, views: Sequence[View], now_s: float) -> Judgement:
    """What the server answered, with the phases and standing of all nodes."""
    return replace(answer, phases=spans(views), evidence=(*answer.evidence, *standing(views, now_s)))


def spans(views: Sequence[View]) -> tuple[PhaseSpan, ...]:
    """The phases of all nodes, each with its node before its rank."""
    return tuple(
        replace(span, rank=f"{view.node.name} {span.rank}".strip()) for view in views for span in view.phases
    )


def standing(views: Sequence[View], now_s: float) -> tuple[Evidence, ...]:
    """One line for each node: where it is, since when it is silent, how its clock stands."""
    return tuple(Evidence(kind="node", text=stand(view, now_s), at_s=now_s) for view in views)


def stand(view: View, now_s: float) -> str:
    parts = [f"{view.node.title}: {view.verdict or view.state} in {view.phase}"]
    if view.judgement and view.judgement.cause:
        parts.append(view.judgement.cause)
    if view.refused:
        parts.append(f"not started: {view.refused}")
    if view.unreachable_s:
        parts.append(f"not reached for {view.unreachable_s:.0f} s")
    parts.append(f"moved last at {view.moved_s:.1f} s")
    if view.clock:
        parts.append(view.clock)
    if view.network:
        silent = [link for link in view.network.reached if link.problem]
        came = [link for link in view.network.reached if not link.problem]
        parts += [f"no way to {link.peer} at {link.address}:{link.port} ({link.problem})" for link in silent]
        parts += [f"reaches {link.peer} at {link.address}:{link.port}" for link in came]
        parts += [f"asks {address}:{port} in vain" for address, port in view.network.connecting]
    return "; ".join((*parts, *view.odd))


def evidence(views: Sequence[View], first: View | None) -> tuple[Evidence, ...]:
    """What each node's own watch read, on our clock, the blamed one's before the others'."""
    ordered = sorted(views, key=lambda view: view is not first)
    return tuple(
        replace(it, kind=f"{view.node.name}: {it.kind}")
        for view in ordered
        if view.judgement
        for it in view.judgement.evidence
    )
