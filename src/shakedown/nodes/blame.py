"""Which node is to blame for what has become of a launch on several: views in, blame out.

It never reads a node, waits or looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from shakedown.core import Verdict, Wait
from shakedown.nodes.clocks import is_before
from shakedown.nodes.network import Reached
from shakedown.nodes.views import UNREACHABLE_S, Blame, Kind, View

SPOKEN_S = 2.0  # after a node has said what is wrong with itself: another may have said it earlier
SETTLE_S = 10.0  # after a node has complained of the others: they are called dead or silent a little later
CLEARLY_S = 2.0  # silences that begin closer together do not say who was first

# What a node says of another: its cause is elsewhere, or on the way there.
_OF_A_PEER = re.compile(
    r"(?i)connection (?:closed|reset|refused|aborted|timed out)|closed by peer|broken pipe|timed? ?out"
    r"|connectfullmesh|remote process exited|no route to host|network is unreachable|recvvalue failed"
    r"|clients? (?:has|have) (?:not )?join|failed to (?:connect|recv)|socket (?:error|timeout)|died without"
    r"|nodename nor servname|heartbeat|worker.{0,40}died|engine core.{0,40}(?:died|failed)"
)


def is_over(views: Sequence[View], now_s: float) -> bool:
    """Whether the launch has failed as a whole. A node that waits says nothing while another still moves."""
    if any(view.refused for view in views):
        return True
    judged = [view for view in views if view.judgement is not None]
    if all(view.still for view in views):
        return True
    gone = [view for view in judged if view.verdict is not Verdict.HUNG]
    if not gone:
        return False
    patience_s = SETTLE_S if all(map(complains_of_a_peer, gone)) else SPOKEN_S
    return now_s - min(view.judged_s for view in gone) >= patience_s


def waiting_in_vain(views: Sequence[View], now_s: float) -> list[View]:
    """Nodes called hung that may be waiting for one that still moves: their verdicts are to be taken back."""
    return [] if is_over(views, now_s) else [view for view in views if view.verdict is Verdict.HUNG]


def blame(views: Sequence[View]) -> Blame:
    """Of a launch that is over. The order is that of certainty: what a node said itself comes first."""
    refused = [view for view in views if view.refused]
    if refused:
        first = refused[0]
        return Blame(kind=Kind.NOT_STARTED, view=first, why=f"was not started: {first.refused}")
    broken = [view for view in views if view.judgement is not None and not view.judgement.serves]
    dead = [view for view in broken if view.verdict is not Verdict.HUNG]
    speakers = [view for view in dead if not complains_of_a_peer(view)]
    if speakers:
        first = earliest(speakers)
        return Blame(kind=Kind.DEAD, view=first, why=_said(first))
    return (
        _stuck_alone(views) or _odd(views) or _cut_off(views) or _never_came(views) or _out_of_sight(views)
        or _late(views, dead) or _other_place(views) or _first_silent(views, dead)
    )  # fmt: skip


def complains_of_a_peer(view: View) -> bool:
    assert view.judgement is not None
    return _OF_A_PEER.search(view.judgement.cause[:400]) is not None


def earliest(views: Sequence[View]) -> View:
    """By the first error on our clock; where the clocks cannot tell, the lowest rank."""
    best = views[0]
    for view in views[1:]:
        uncertain_s = view.uncertain_s + best.uncertain_s
        if is_before(_error_s(view), _error_s(best), uncertain_s):
            best = view
    return best


def _error_s(view: View) -> float:
    return view.error_s if view.error_s is not None else view.judged_s


def _said(view: View) -> str:
    assert view.judgement is not None
    judgement = view.judgement
    word = {Verdict.CRASHED: "is dead", Verdict.HUNG: "is silent"}.get(judgement.verdict, "fails")
    return f"{word}: {judgement.cause}" if judgement.cause else word


def _odd(views: Sequence[View]) -> Blame | None:
    odd = [view for view in views if view.odd]
    if not odd:
        return None
    first = odd[0]
    rest = f"; {first.judgement.cause}" if first.judgement else ""
    return Blame(
        kind=_kind(first),
        view=first,
        why=f"has {' and '.join(first.odd)}{rest}",
        fingerprint="; ".join(setting.partition(",")[0] for setting in first.odd),
    )


def _kind(view: View) -> Kind:
    return Kind.DEAD if view.verdict is Verdict.CRASHED else Kind.SILENT


def _stuck_alone(views: Sequence[View]) -> Blame | None:
    """One is stopped, spins or waits for its disk, and the others wait for it."""
    stuck = [
        view
        for view in views
        if view.judgement is not None and view.judgement.wait not in (None, Wait.WAITING)
    ]
    if not stuck or len(stuck) == len(views):
        return None
    return Blame(kind=Kind.SILENT, view=stuck[0], why=_said(stuck[0]))


def _cut_off(views: Sequence[View]) -> Blame | None:
    """Of two that cannot reach each other, the one that more cannot reach; else the one that asks in vain."""
    broken = [(view, link) for view in views for link in _broken_links(view)]
    if not broken:
        return None
    asked_in_vain = {view.node.rank: 0 for view in views}
    named = {view.node.name: view for view in views}
    for view, link in broken:
        asked_in_vain[view.node.rank] += 1
        if link.peer in named:
            asked_in_vain[named[link.peer].node.rank] += 1
    worst = max(views, key=lambda view: (asked_in_vain[view.node.rank], view.node.rank))
    told = [
        f"{view.node.name} to {link.peer} at {link.address}:{link.port}: {link.problem}"
        for view, link in broken
    ]
    peers = {link.peer if view is worst else view.node.name for view, link in broken} - {worst.node.name}
    why = f"is cut off from {', '.join(sorted(peers)) or 'the others'}: nothing comes through from {told[0]}"
    if len(told) > 1:
        why += f" ({len(told) - 1} more such)"
    return Blame(kind=Kind.CUT_OFF, view=worst, why=f"{why}; a firewall, a route or a cable")


def _broken_links(view: View) -> list[Reached]:
    return [link for link in view.network.reached if link.problem] if view.network else []


def _never_came(views: Sequence[View]) -> Blame | None:
    """One that has opened no socket towards the others, which have."""
    idle = [view for view in views if view.network is not None and view.network.idle]
    if not idle or len(idle) == len(views) or any(view.network is None for view in views):
        return None
    own = idle[0].judgement.cause if idle[0].judgement else ""
    why = "is late: nothing of it has begun to meet the others" + (f"; {own}" if own else "")
    return Blame(kind=Kind.LATE, view=idle[0], why=why)


def _out_of_sight(views: Sequence[View]) -> Blame | None:
    lost = [view for view in views if view.unreachable_s > UNREACHABLE_S]
    if not lost:
        return None
    first = max(lost, key=lambda view: view.unreachable_s)
    return Blame(
        kind=Kind.UNREACHABLE, view=first, why=f"has not been reached by us for {first.unreachable_s:.0f} s"
    )


def _late(views: Sequence[View], dead: Sequence[View]) -> Blame | None:
    """The one that never came as far as the others are."""
    living = [view for view in views if view not in dead] or list(views)
    last = min(living, key=lambda view: view.phase.order)
    furthest = max(views, key=lambda view: view.phase.order)
    if last.phase is furthest.phase or (not last.still and not dead):
        return None
    own = f": {last.judgement.cause}" if last.judgement and last.judgement.cause else ""
    why = f"is late: in {last.phase} while {furthest.node.name} waits in {furthest.phase}{own}"
    return Blame(kind=Kind.LATE, view=last, why=why)


def _other_place(views: Sequence[View]) -> Blame | None:
    """Of three or more that wait, the one that waits elsewhere: the largest group is the healthy one."""
    places = [_place(view) for view in views]
    counts = {place: places.count(place) for place in places}
    if len(views) < 3 or len(counts) < 2 or "" in counts:
        return None
    rarest = min(counts, key=lambda place: counts[place])
    if counts[rarest] > 1 or max(counts.values()) < 2:
        return None
    odd = views[places.index(rarest)]
    return Blame(kind=Kind.SILENT, view=odd, why=f"waits elsewhere than the others: {_said(odd)}")


def _place(view: View) -> str:
    suspect = view.judgement.suspect if view.judgement else None
    return suspect.frame if suspect else ""


def _first_silent(views: Sequence[View], dead: Sequence[View]) -> Blame:
    """The one that moved last the longest ago, if that is clear."""
    if dead:  # all of them only complain of others that say nothing themselves
        first = earliest(dead)
        return Blame(kind=Kind.DEAD, view=first, why=_said(first))
    by_time = sorted(views, key=lambda view: view.moved_s)
    first, second = by_time[0], by_time[1]
    margin_s = first.uncertain_s + second.uncertain_s + CLEARLY_S
    if is_before(first.moved_s, second.moved_s, margin_s) and first.phase is second.phase:
        ahead_s = second.moved_s - first.moved_s
        return Blame(
            kind=Kind.SILENT,
            view=first,
            why=f"fell silent {ahead_s:.0f} s before {second.node.name}: {_said(first)[11:]}",
        )
    return Blame(kind=Kind.NOBODY, view=None, why="all nodes wait for each other")
