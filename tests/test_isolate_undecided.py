"""What showed nothing, and what was seen once, proves nothing, and costs no more launches than it must."""

from dataclasses import replace

import pytest
from test_isolate_search import (
    CRASH,
    HUNG,
    OOM,
    SERVES,
    UNDECIDED,
    Server,
    factors_of,
    named,
    planted,
    search,
)

from shakedown.core import (
    Check,
    Ended,
    Experiment,
    HypothesisState,
    Judgement,
    Outcome,
    Phase,
    Purpose,
    Step,
    Verdict,
)
from shakedown.isolate import isolate
from shakedown.isolate.arena import Arena, read
from shakedown.isolate.certify import Evidence, by_wald, check, demands
from shakedown.isolate.closure import Dependencies
from shakedown.isolate.judge import Showing
from shakedown.isolate.remedy import mildest_value


def checks(conclusion):
    return dict(conclusion.causes[0].certificate)


def numbered(server, odd):
    """The server, but its launches of these numbers show something else."""

    def answer(experiment):
        outcome = server(experiment)
        return replace(outcome, judgement=odd.get(len(server.asked), outcome.judgement))

    return answer


def test_a_launch_that_stays_undecided_without_a_flag_does_not_blame_that_flag():
    """f01 is to blame; without f00 nothing is ever decided, so that both are needed is not shown."""
    server = Server(lambda kept: UNDECIDED if "f00" not in kept else planted({"f01"})(kept))
    conclusion = search(factors_of(4), server)
    assert conclusion.ended is Ended.NOT_PROVEN
    assert not any(cause.proven for cause in conclusion.causes)
    assert conclusion.suspects[0][0] == "f01"


def test_an_interaction_whose_parts_alone_stay_undecided_is_shown_by_the_whole_command_less_each():
    def rule(kept):
        return UNDECIDED if kept in ({"f00"}, {"f01"}) else planted({"f00", "f01"})(kept)

    conclusion = search(factors_of(4), Server(rule))
    assert (conclusion.ended, named(conclusion)) == (Ended.PROVEN, {frozenset({"f00", "f01"})})
    served = {step.outcome.trial_id for step in conclusion.steps if step.outcome.judgement.serves}
    assert set(checks(conclusion)["one_less_passes"].trial_ids) <= served


def test_a_proof_that_stays_undecided_says_so_and_the_cause_is_not_proven():
    server = Server(lambda kept: UNDECIDED if kept == {"f02"} else planted({"f02"})(kept))
    conclusion = search(factors_of(6), server)
    assert (conclusion.ended, named(conclusion)) == (Ended.NOT_PROVEN, {frozenset({"f02"})})
    assert checks(conclusion)["alone_fails"].value is None
    assert "undecided in weight_load" in checks(conclusion)["alone_fails"].note
    assert checks(conclusion)["workaround_serves"].value
    assert "shows nothing" in conclusion.note
    suspected = [h.state for h in conclusion.hypotheses if h.statement.startswith("f02 ")]
    assert suspected == [HypothesisState.OPEN]


@pytest.mark.parametrize("beside", [{"f01"}, {"f01", "f02", "f03"}], ids=["one flag", "the rest together"])
def test_a_workaround_that_stays_undecided_leaves_the_cause_and_costs_no_budget(beside):
    def rule(kept):
        return HUNG if "f00" in kept else UNDECIDED if beside <= kept else SERVES

    server = Server(rule)
    conclusion = search(factors_of(4), server)
    assert (conclusion.ended, named(conclusion)) == (Ended.NOT_PROVEN, {frozenset({"f00"})})
    assert checks(conclusion)["alone_fails"].value
    assert checks(conclusion)["one_less_passes"].value
    last = checks(conclusion)["workaround_serves"]
    assert last.value is None
    assert "undecided" in last.note
    kept = {step.experiment.kept for step in conclusion.steps if step.outcome.trial_id in last.trial_ids}
    assert kept == {frozenset({"f01", "f02", "f03"})}
    assert len(server.asked) <= 14


def test_a_stray_crash_of_the_workaround_is_no_second_cause():
    """The port was held for a moment: the same command serves when it is tried again."""
    conclusion = search(factors_of(4), Server(planted({"f00"})))
    tried = [step.outcome.trial_id for step in conclusion.steps if "f00" not in step.experiment.kept]
    server = Server(planted({"f00"}))
    stray = isolate(factors_of(4), numbered(server, {int(tried[-1][1:]): OOM}), seed=1)
    assert stray.ended is Ended.PROVEN
    last = checks(stray)["workaround_serves"]
    assert last.value
    assert f"{tried[-1]}: crashed in weight_load: OutOfMemoryError" in last.note
    assert (tried[-1], "crashed in weight_load: OutOfMemoryError") in stray.other_failures


@pytest.mark.parametrize("cause", [{"f01"}, {"f01", "f03"}], ids=["one", "two"])
@pytest.mark.parametrize(
    ("odd", "times", "more"),
    [(OOM, 1, 5), (UNDECIDED, 1, 1), (UNDECIDED, 2, 8)],
    ids=["a crash", "undecided once", "undecided twice"],
)
def test_one_odd_launch_anywhere_proves_nothing_and_burns_no_budget(cause, odd, times, more):
    server = Server(planted(cause, failure=CRASH))
    search(factors_of(6), server)
    usual = len(server.asked)
    for at in range(2, usual + 1):
        server = Server(planted(cause, failure=CRASH))
        oracle = numbered(server, dict.fromkeys(range(at, at + times), odd))
        conclusion = isolate(factors_of(6), oracle, seed=1)
        assert {frozenset(it.factors) for it in conclusion.causes if it.proven} <= {frozenset(cause)}
        assert conclusion.ended is Ended.PROVEN or odd is UNDECIDED
        assert len(server.asked) <= usual + more, at


# --- what the evidence says of it


ARENA = Arena(
    universe=frozenset({"f00", "f01"}),
    floor=frozenset(),
    target=HUNG.signature,
    needs=Dependencies(factors_of(2)),
)
ENDED_EARLY = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.WEIGHT_LOAD, passed=Phase.WEIGHT_LOAD)
LESS = frozenset({"f01"})


def evidence_of(*looks, target=HUNG):
    """The looks at the command less f00, in order: (judgement, whether nothing ran beside it)."""
    steps = [
        Step(
            experiment=Experiment(kept=LESS, purpose=Purpose.WORKAROUND, reason=""),
            outcome=Outcome(trial_id=f"t{at}", judgement=judgement, seconds=1.0, alone=alone),
            concluded="",
        )
        for at, (judgement, alone) in enumerate(looks, 1)
    ]
    arena = replace(ARENA, target=target.signature)
    return Evidence(read(steps, arena), by_wald(((0.99, 1.0),)))


def workaround():
    (*_, demand) = demands(ARENA, (frozenset({"f00"}),), frozenset({"f00"}), evidence_of())
    return demand


def test_an_undecided_look_to_the_end_does_not_make_one_that_was_cut_short_a_whole_one():
    seen = evidence_of((ENDED_EARLY, True), (UNDECIDED, True), (UNDECIDED, True))
    assert seen.shows(LESS) is Showing.SERVES
    assert seen.state(workaround()) is None
    assert not seen.lacks(workaround())  # and a third one is not asked for
    assert evidence_of((ENDED_EARLY, True), (SERVES, True)).state(workaround())


def test_an_undecided_look_alone_does_not_confirm_what_was_seen_beside_others():
    assert evidence_of((SERVES, False), (UNDECIDED, True)).state(workaround()) is None
    assert evidence_of((SERVES, False), (SERVES, True)).state(workaround())


def test_a_launch_ended_before_a_later_failure_could_show_was_no_look_for_that_one():
    late = replace(HUNG, phase=Phase.SERVING)
    seen = evidence_of((ENDED_EARLY, True), target=late)
    assert seen.lacks(workaround())
    assert not seen.hopeless(LESS)


def test_a_check_that_is_settled_cites_no_launch_that_showed_nothing():
    seen = evidence_of((UNDECIDED, True), (SERVES, True))
    assert check(seen, [workaround()], {}) == Check(value=True, trial_ids=("t2",))
    nothing = evidence_of((UNDECIDED, True), (UNDECIDED, True))
    assert check(nothing, [workaround()], {"t2": "t2: undecided"}) == Check(
        value=None, trial_ids=("t1", "t2"), note="t2: undecided"
    )


def test_of_a_value_that_showed_nothing_it_is_not_said_that_it_does_not_work():
    offered = [("--n", str(2**power)) for power in range(5)]
    shows = {"1": Showing.SERVES, "2": Showing.UNKNOWN, "4": Showing.UNKNOWN, "8": Showing.FAILS}
    assert mildest_value(offered, 4, lambda tokens: shows.get(tokens[-1], Showing.FAILS)) == (
        ("--n", "1"),
        None,
    )
    siblings = [("--backend", "A"), ("--backend", "B"), ("--backend", "C")]
    answers = dict(zip("ABC", (Showing.FAILS, Showing.UNKNOWN, Showing.SERVES), strict=True))
    assert mildest_value(siblings, 4, lambda tokens: answers[tokens[-1]]) == (siblings[2], siblings[0])
