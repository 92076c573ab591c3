"""A planted cause is found, proven and worked round, with few questions and none asked twice."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shakedown.core import (
    CauseKind,
    Check,
    Conclusion,
    Ended,
    Experiment,
    Factor,
    FactorKind,
    HypothesisState,
    Judgement,
    Outcome,
    Phase,
    Purpose,
    Rung,
    Step,
    Verdict,
    Wait,
)
from shakedown.errors import BudgetSpent
from shakedown.isolate import Clues, Ladder, SearchLimits, isolate

HUNG = Judgement(
    verdict=Verdict.HUNG, phase=Phase.DIST_INIT, wait=Wait.WAITING, cause="rank 1 is missing", fingerprint="h"
)
CRASH = Judgement(
    verdict=Verdict.CRASHED, phase=Phase.CONFIG, cause="ValueError: nnodes", fingerprint="ValueError: nnodes"
)
OOM = Judgement(
    verdict=Verdict.CRASHED, phase=Phase.WEIGHT_LOAD, cause="OutOfMemoryError", fingerprint="OutOfMemoryError"
)
SERVES = Judgement(verdict=Verdict.SERVES, phase=Phase.SERVING)
UNDECIDED = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.WEIGHT_LOAD)
NEIGHBOUR = Judgement(verdict=Verdict.CRASHED, phase=Phase.BIND, environment=True, fingerprint="port")

Rule = Callable[[frozenset[str]], Judgement]


def factors_of(
    count: int, needs: dict[str, set[str]] | None = None, kind: FactorKind = FactorKind.FLAG
) -> list[Factor]:
    return [
        factor(f"f{i:02d}", needs=frozenset((needs or {}).get(f"f{i:02d}", ())), kind=kind)
        for i in range(count)
    ]


def factor(
    name: str,
    *,
    kind: FactorKind = FactorKind.FLAG,
    needs: frozenset[str] = frozenset(),
    dear: int = 0,
    safe: bool = False,
) -> Factor:
    return Factor(name=name, kind=kind, was="on", now="removed", needs=needs, dear=dear, safe=safe)


@dataclass
class Server:
    """Answers by a rule; a failure shows with chance `rate` (the first look always shows it)."""

    rule: Rule
    rate: float = 1.0
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    budget: int = 400
    asked: list[Experiment] = field(default_factory=list)

    def __call__(self, experiment: Experiment) -> Outcome:
        if len(self.asked) >= self.budget:
            raise BudgetSpent("no launch is left")
        first = not self.asked
        self.asked.append(experiment)
        judgement = self.rule(experiment.kept)
        if not first and self.chance.random() >= self.rate:
            judgement = SERVES
        return Outcome(trial_id=f"t{len(self.asked)}", judgement=judgement, seconds=10.0)


def planted(*causes: set[str], failure: Judgement = HUNG) -> Rule:
    return lambda kept: failure if any(cause <= kept for cause in causes) else SERVES


def search(
    factors: Sequence[Factor],
    server: Server,
    *,
    clues: Clues | None = None,
    limits: SearchLimits | None = None,
    seed: int = 1,
) -> Conclusion:
    return isolate(factors, server, seed=seed, clues=clues, limits=limits)


def named(conclusion: Conclusion) -> set[frozenset[str]]:
    return {frozenset(cause.factors) for cause in conclusion.causes}


@st.composite
def worlds(draw: st.DrawFn, sizes: tuple[int, int] = (1, 3), least: int = 3) -> tuple[list[Factor], set[str]]:
    """Factors, some of which need an earlier one, and a cause no member of which implies another."""
    count = draw(st.integers(least, 14))
    needs: dict[str, set[str]] = {}
    for index in range(1, count):
        if draw(st.integers(0, 3)) == 0:
            needs[f"f{index:02d}"] = {f"f{draw(st.integers(0, index - 1)):02d}"}

    def implied(name: str) -> set[str]:
        found: set[str] = set()
        for need in needs.get(name, ()):
            found |= {need} | implied(need)
        return found

    names = [f"f{i:02d}" for i in range(count)]
    cause = set(draw(st.lists(st.sampled_from(names), min_size=sizes[0], max_size=sizes[1], unique=True)))
    cause -= set().union(*(implied(name) for name in cause))
    return factors_of(count, needs), cause


@settings(max_examples=30)
@given(worlds())
def test_a_planted_cause_of_up_to_three_is_found_proven_and_worked_round(world):
    factors, cause = world
    server = Server(planted(cause))
    conclusion = search(factors, server)
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset(cause)}
    found = conclusion.causes[0]
    assert found.proven
    assert [name for name, _ in found.certificate] == [
        "alone_fails",
        "one_less_passes",
        "workaround_serves",
    ]
    assert all(check.trial_ids for _, check in found.certificate)
    assert not cause <= found.workaround.kept
    assert len(server.asked) <= 40


@settings(max_examples=30)
@given(worlds(sizes=(1, 2), least=8))
def test_a_crash_with_a_fingerprint_is_hardly_ever_looked_at_again(world):
    factors, cause = world
    server = Server(planted(cause, failure=CRASH))
    assert named(search(factors, server)) == {frozenset(cause)}
    again = len(server.asked) - len({e.kept for e in server.asked})
    assert again <= (2 if len(cause) == 1 else 4)  # an interaction may be one flag that did not always fail


@settings(max_examples=25)
@given(worlds())
def test_repetitions_of_a_configuration_count_up(world):
    factors, cause = world
    server = Server(planted(cause))
    search(factors, server)
    for kept in {e.kept for e in server.asked}:
        repeats = [e.repeat for e in server.asked if e.kept == kept]
        assert repeats == list(range(len(repeats)))


@settings(max_examples=25)
@given(worlds(), st.randoms(use_true_random=False))
def test_questions_and_answer_do_not_depend_on_the_order_of_factors(world, shuffler):
    factors, cause = world
    shuffled = list(factors)
    shuffler.shuffle(shuffled)
    one, other = Server(planted(cause)), Server(planted(cause))
    assert search(factors, one) == search(shuffled, other)
    assert one.asked == other.asked


@settings(max_examples=25)
@given(worlds(), st.integers(0, 20))
def test_a_search_cut_short_and_resumed_asks_the_same_questions(world, cut):
    factors, cause = world
    whole, first = Server(planted(cause)), Server(planted(cause), budget=cut + 1)
    expected = search(factors, whole)
    search(factors, first)
    assert whole.asked[: len(first.asked)] == first.asked
    assert search(factors, Server(planted(cause))) == expected


@settings(max_examples=20)
@given(worlds(), st.sampled_from([0.7, 0.5]), st.integers(0, 1000))
def test_a_flaky_failure_is_searched_to_an_end_within_the_limit(world, rate, seed):
    factors, cause = world
    server = Server(planted(cause), rate=rate, chance=random.Random(seed))
    conclusion = search(factors, server, limits=SearchLimits(max_launches=120))
    assert len(server.asked) <= 120
    if conclusion.ended is Ended.PROVEN:  # five in a hundred passes mislead, but never past the cause itself
        assert all(cause.certificate for cause in conclusion.causes)


def test_flaky_causes_are_mostly_found():
    right = 0
    for seed in range(20):
        server = Server(planted({"f07"}), rate=0.7, chance=random.Random(seed))
        right += named(search(factors_of(12), server)) == {frozenset({"f07"})}
    assert right >= 17


def test_a_crash_that_comes_and_goes_is_mostly_not_taken_for_an_interaction():
    """It is expected to show every time, and one flag that once did not fail looks like half of two."""
    right = 0
    for seed in range(20):
        server = Server(planted({"f07"}, failure=CRASH), rate=0.5, chance=random.Random(seed))
        right += named(search(factors_of(12), server)) == {frozenset({"f07"})}
    assert right >= 16


def test_a_crash_that_is_said_to_come_and_go_is_told_where_it_mostly_serves():
    right = {False: 0, True: 0}
    for said in right:
        for seed in range(20):
            server = Server(planted({"f07"}, failure=CRASH), rate=0.4, chance=random.Random(seed))
            conclusion = search(factors_of(12), server, clues=Clues(intermittent=said))
            right[said] += named(conclusion) == {frozenset({"f07"})}
    assert right[True] >= 18
    assert right[True] > right[False]


def test_a_base_that_served_in_safe_mode_takes_back_what_was_blamed():
    """Wherever safe mode was at last seen to fail, no factor stays named."""
    base = 0
    for seed in range(20):
        server = Server(planted(set()), rate=0.6, chance=random.Random(seed))
        conclusion = search(factors_of(8), server)
        assert "whatever the other factors are" not in conclusion.note
        kinds = {cause.kind for cause in conclusion.causes}
        assert kinds != {CauseKind.BASE, CauseKind.FACTORS}
        base += kinds == {CauseKind.BASE}
    assert base >= 16


def test_a_crash_that_names_itself_in_safe_mode_too_costs_no_launch_for_a_debug_log():
    server = Server(lambda kept: CRASH)
    search(factors_of(5), server)
    assert [e.purpose for e in server.asked] == [Purpose.REPRODUCE, Purpose.SAFE_MODE]
    asks = replace(CRASH, cause="DistBackendError: NCCL error, run with NCCL_DEBUG=INFO for details")
    server = Server(lambda kept: asks)
    search(factors_of(5), server)
    assert server.asked[-1].debug


def test_what_fits_no_hypothesis_is_looked_at_again_before_it_is_split():
    """A failure that comes and goes looks like a cause of four: the same set once more tells them apart."""
    looked = 0
    for seed in range(30):
        server = Server(planted({"f07"}, failure=CRASH), rate=0.6, chance=random.Random(seed))
        conclusion = search(factors_of(12), server)
        again = [step for step in conclusion.steps if step.experiment.reason.startswith("does it fail every")]
        looked += bool(again)
        if conclusion.probability is None and conclusion.ended is Ended.PROVEN:
            assert again  # split: only after that
    assert looked > 0


@given(st.integers(0, 11), st.integers(0, 11))
def test_a_single_cause_that_needs_another_factor_costs_no_launch_for_what_the_workaround_shows(cause, need):
    if cause == need:
        return
    name, other = f"f{cause:02d}", f"f{need:02d}"
    server = Server(planted({name}))
    conclusion = search(factors_of(12, needs={name: {other}}), server)
    assert named(conclusion) == {frozenset({name})}
    shown = dict(conclusion.causes[0].certificate)
    assert shown["one_less_passes"].value
    assert shown["one_less_passes"].trial_ids == shown["workaround_serves"].trial_ids
    assert {other} not in [set(e.kept) for e in server.asked if e.purpose is Purpose.ONE_LESS]


def test_two_causes_cost_no_more_where_a_launch_that_serves_takes_twice_as_long():
    """The quicker failure once drew larger sets, which nearly always failed and told nothing."""

    def asked(serving_s: float) -> int:
        total = 0
        for first in (0, 9):
            rule = planted({f"f{first:02d}"}, {f"f{first + 4:02d}"}, failure=CRASH)
            server = Server(rule)

            def timed(experiment: Experiment, server: Server = server) -> Outcome:
                outcome = server(experiment)
                return replace(outcome, seconds=serving_s if outcome.judgement.serves else 60.0)

            conclusion = isolate(factors_of(24), timed, seed=1)
            assert len(named(conclusion)) == 2
            total += len(server.asked)
        return total

    assert asked(120.0) == asked(60.0)


@settings(max_examples=25)
@given(worlds(sizes=(1, 2)), worlds(sizes=(1, 1)))
def test_a_second_independent_cause_is_found_after_the_first(world, other):
    factors, cause = world
    second = {name for name in other[1] if name in {f.name for f in factors}}
    closure = {f.name: f.needs for f in factors}
    if not second or second & cause or any(closure[name] for name in second | cause):
        return
    conclusion = search(factors, Server(planted(cause, second)))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset(cause), frozenset(second)}
    assert not any(part <= conclusion.causes[0].workaround.kept for part in (cause, second))


@settings(max_examples=10)
@given(st.sets(st.sampled_from([f"f{i:02d}" for i in range(9)]), min_size=4, max_size=5))
def test_a_cause_larger_than_any_hypothesis_is_found_by_plain_splitting(cause):
    conclusion = search(factors_of(9), Server(planted(cause)))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset(cause)}


def test_a_base_failure_clears_the_flags_takes_evidence_and_is_not_proven_without_rungs():
    server = Server(lambda kept: HUNG)
    conclusion = search(factors_of(5), server)
    assert conclusion.ended is Ended.NOT_PROVEN
    assert conclusion.causes[0].kind is CauseKind.BASE
    assert dict(conclusion.causes[0].certificate)["safe_mode_fails"] == Check(value=True, trial_ids=("t2",))
    assert dict(conclusion.causes[0].certificate)["rung_fails"].value is None
    assert conclusion.cleared == tuple(f"f{i:02d}" for i in range(5))
    assert [e.purpose for e in server.asked] == [Purpose.REPRODUCE, Purpose.SAFE_MODE, Purpose.EVIDENCE]
    assert server.asked[-1].debug
    assert "innocent" in conclusion.steps[1].concluded
    assert [h.state for h in conclusion.hypotheses] == [HypothesisState.SUPPORTED, HypothesisState.REFUTED]


RUNGS = (
    Rung(name="torch", title="t"),
    Rung(name="matmul", title="m"),
    Rung(name="tiny model", title="s", same=True),
)
CURE = ("f00", ("--backend", "other"))


def climbed(broken, *, cures=(), cured=False, beyond="the weights", says=HUNG):
    """A search whose every launch hangs; of the rungs, the `broken` fail as they say."""

    class Machine(Server):
        def __call__(self, experiment):
            outcome = super().__call__(experiment)
            if experiment.rung:
                return replace(outcome, judgement=says if experiment.rung in broken else SERVES)
            return replace(outcome, judgement=SERVES) if cured and experiment.substitutes else outcome

    machine = Machine(lambda kept: HUNG)
    ladder = Ladder(rungs=RUNGS, beyond=beyond, cures=cures)
    return machine, isolate(factors_of(3), machine, seed=1, ladder=ladder)


def rungs_asked(machine):
    return [experiment.rung for experiment in machine.asked if experiment.rung]


def test_the_lowest_broken_rung_is_the_base_cause_and_the_next_simpler_one_passes():
    machine, conclusion = climbed({"matmul", "tiny model"}, says=CRASH)
    assert conclusion.ended is Ended.PROVEN
    assert conclusion.causes[0].rung == "matmul"
    certificate = dict(conclusion.causes[0].certificate)
    assert [certificate[name].value for name in ("safe_mode_fails", "rung_fails", "next_simpler_passes")] == [
        True
    ] * 3
    assert certificate["workaround_serves"].value is None
    assert "crashed" in certificate["rung_fails"].note
    assert rungs_asked(machine) == ["torch", "matmul", "matmul"]
    assert conclusion.cleared == ("f00", "f01", "f02")


def test_where_the_simplest_rung_is_broken_nothing_simpler_passed_and_nothing_is_proven():
    _, conclusion = climbed({"torch"})
    assert conclusion.ended is Ended.NOT_PROVEN
    assert conclusion.causes[0].rung == "torch"


def test_where_every_rung_passes_what_safe_mode_has_beyond_them_is_to_blame():
    machine, conclusion = climbed(set())
    assert (conclusion.ended, conclusion.causes[0].rung) == (Ended.PROVEN, "the weights")
    assert rungs_asked(machine) == ["torch", "matmul", "tiny model"]
    _, unnamed = climbed(set(), beyond="")
    assert (unnamed.ended, unnamed.causes[0].rung) == (Ended.NOT_PROVEN, None)


def climbed_as(says, first_safe_mode=HUNG):
    """A search whose every launch hangs, on rungs that say what they are told, look by look (else: serve)."""
    said = {rung: list(judgements) for rung, judgements in says.items()}
    safe_mode = [first_safe_mode]

    class Machine(Server):
        def __call__(self, experiment):
            outcome = super().__call__(experiment)
            if experiment.rung:
                left = said.get(experiment.rung, ())
                return replace(outcome, judgement=left.pop(0) if left else SERVES)
            null = not experiment.kept and safe_mode
            return replace(outcome, judgement=safe_mode.pop()) if null else outcome

    machine = Machine(lambda kept: HUNG)
    return isolate(factors_of(3), machine, seed=1, ladder=Ladder(rungs=RUNGS, beyond="the weights"))


def test_a_server_rung_that_fails_in_a_way_of_its_own_leaves_open_what_is_broken():
    """It may be the rung itself, for all that is known: what lies above it is not blamed."""
    _, conclusion = climbed({"tiny model"}, says=CRASH)
    assert (conclusion.ended, conclusion.causes[0].rung) == (Ended.NOT_PROVEN, None)
    below = dict(conclusion.causes[0].certificate)["next_simpler_passes"]
    assert (below.value, below.trial_ids) == (None, ("t6",))
    assert "tiny model settles nothing: crashed in config" in below.note
    _, same = climbed({"tiny model"}, says=HUNG)
    assert same.causes[0].rung == "tiny model"


@pytest.mark.parametrize(
    "looks",
    [(UNDECIDED, UNDECIDED), (CRASH, SERVES), (CRASH, UNDECIDED, UNDECIDED)],
    ids=["undecided", "once", "once, then undecided"],
)
def test_a_rung_that_was_not_shown_to_pass_proves_nothing_of_the_next(looks):
    conclusion = climbed_as({"matmul": looks, "tiny model": (HUNG, HUNG)})
    cause = conclusion.causes[0]
    assert (conclusion.ended, cause.rung) == (Ended.NOT_PROVEN, "tiny model")
    assert dict(cause.certificate)["rung_fails"].value
    below = dict(cause.certificate)["next_simpler_passes"]
    assert below.value is None
    assert "matmul settles nothing" in below.note


def test_a_rung_above_one_that_settled_nothing_vouches_for_it():
    conclusion = climbed_as({"matmul": (UNDECIDED, UNDECIDED)})
    assert (conclusion.ended, conclusion.causes[0].rung) == (Ended.PROVEN, "the weights")


def test_safe_mode_that_first_showed_nothing_is_not_what_the_rungs_are_measured_by():
    conclusion = climbed_as({"tiny model": (HUNG, HUNG)}, first_safe_mode=NEIGHBOUR)
    assert (conclusion.ended, conclusion.causes[0].rung) == (Ended.PROVEN, "tiny model")
    beyond = climbed_as({}, first_safe_mode=NEIGHBOUR)
    assert dict(beyond.causes[0].certificate)["rung_fails"].trial_ids == ("t3",)


def test_a_sibling_that_does_not_need_the_rung_hands_back_a_working_command():
    _, conclusion = climbed({"matmul"}, cures=(CURE,), cured=True)
    workaround = conclusion.causes[0].workaround
    assert workaround is not None
    assert workaround.substitutes == (CURE,)
    assert workaround.kept == frozenset({"f00", "f01", "f02"})
    _, incurable = climbed({"matmul"}, cures=(CURE,))
    assert incurable.causes[0].workaround is None
    assert incurable.ended is Ended.PROVEN


def test_a_launch_without_factors_that_fails_is_a_base_failure():
    server = Server(lambda kept: CRASH)
    conclusion = search([], server)
    assert conclusion.causes[0].kind is CauseKind.BASE
    assert len(server.asked) == 2


def test_a_launch_that_serves_is_nothing_to_isolate():
    server = Server(lambda kept: SERVES)
    assert search(factors_of(4), server).ended is Ended.SERVES
    assert len(server.asked) == 1


def test_a_failure_seen_before_that_does_not_show_is_not_reproduced_after_three_looks():
    server = Server(lambda kept: SERVES)
    conclusion = search(factors_of(4), server, clues=Clues(seen=HUNG))
    assert conclusion.ended is Ended.NOT_REPRODUCED
    assert "0 of 3" in conclusion.note
    assert "3/3" in conclusion.note
    assert [e.repeat for e in server.asked] == [0, 1, 2]


def test_a_failure_that_is_said_to_come_and_go_is_waited_for():
    served = iter([True] * 6)
    server = Server(lambda kept: SERVES if next(served, False) else HUNG)
    conclusion = search(factors_of(4), server, clues=Clues(intermittent=True))
    assert conclusion.failing.verdict is Verdict.HUNG
    never = search(factors_of(4), Server(lambda kept: SERVES), clues=Clues(intermittent=True))
    assert never.ended is Ended.NOT_REPRODUCED
    assert "0 of 8" in never.note


def test_a_launch_undecided_twice_ends_the_search_undecided():
    assert search(factors_of(4), Server(lambda kept: UNDECIDED)).ended is Ended.UNDECIDED
    server = Server(lambda kept: HUNG if kept else NEIGHBOUR)
    conclusion = search(factors_of(4), server)
    assert conclusion.ended is Ended.UNDECIDED
    assert len(server.asked) == 3


def test_a_neighbour_that_comes_once_is_looked_past():
    seen: list[frozenset[str]] = []

    def rule(kept):
        seen.append(kept)
        return NEIGHBOUR if len(seen) == 3 else planted({"f02"})(kept)

    conclusion = search(factors_of(4), Server(rule))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f02"})}


def test_spent_launches_leave_ranked_suspects():
    server = Server(planted({"f05"}), budget=4)
    conclusion = search(factors_of(16), server, clues=Clues(weights={"f05": 3.0}))
    assert conclusion.ended is Ended.BUDGET
    assert conclusion.suspects
    assert conclusion.suspects == tuple(sorted(conclusion.suspects, key=lambda s: (-s[1], s[0])))
    assert not conclusion.causes


def test_a_budget_spent_before_the_first_launch_passes_through():
    with pytest.raises(BudgetSpent):
        search(factors_of(3), Server(lambda kept: HUNG, budget=0))


def test_safe_mode_that_fails_differently_is_put_aside_for_the_plain_null():
    factors = [factor("eager", kind=FactorKind.DEFAULT), *factors_of(6)]

    def rule(kept):
        return CRASH if "eager" not in kept else planted({"f03"})(kept)

    server = Server(rule)
    conclusion = search(factors, server)
    assert [e.purpose for e in server.asked[:3]] == [
        Purpose.REPRODUCE,
        Purpose.SAFE_MODE,
        Purpose.PLAIN_NULL,
    ]
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f03"})}
    assert ("t2", "crashed in config: ValueError: nnodes") in conclusion.other_failures


def test_what_makes_the_model_fit_is_put_back_when_memory_runs_out_without_it():
    factors = [
        factor("quantization", kind=FactorKind.FIT),
        factor("graphs", kind=FactorKind.DEFAULT),
        *factors_of(6),
    ]
    conclusion = search(
        factors, Server(lambda kept: OOM if "quantization" not in kept else planted({"f01", "graphs"})(kept))
    )
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f01", "graphs"})}


def test_flags_are_innocent_when_the_plain_null_fails_the_same_way():
    factors = [
        factor("graphs", kind=FactorKind.DEFAULT),
        factor("overlap", kind=FactorKind.DEFAULT),
        factor("prefix_cache", kind=FactorKind.DEFAULT),
        *factors_of(6),
    ]

    def rule(kept):
        return CRASH if not kept else planted({"graphs"})(kept)

    conclusion = search(factors, Server(rule))
    assert named(conclusion) == {frozenset({"graphs"})}


def test_a_configuration_that_fails_differently_is_routed_round():
    def rule(kept):
        if ("f01" in kept) != ("f02" in kept):  # a pair that is only valid together
            return CRASH
        return planted({"f01", "f02"})(kept)

    conclusion = search(factors_of(10), Server(rule))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f01", "f02"})}
    assert not {"f01", "f02"} & conclusion.causes[0].workaround.kept
    less = dict(conclusion.causes[0].certificate)["one_less_passes"]
    assert less.value
    assert "ValueError" in less.note


def test_a_cause_that_hides_behind_the_first_is_found_with_its_own_failure():
    def rule(kept):
        if "f04" in kept:
            return HUNG
        return OOM if "f08" in kept else SERVES

    conclusion = search(factors_of(10), Server(rule))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f04"}), frozenset({"f08"})}
    assert conclusion.causes[0].workaround.kept == frozenset(f"f{i:02d}" for i in range(10)) - {"f04", "f08"}


def test_of_an_interaction_only_the_member_cheapest_to_the_user_goes():
    factors = [factor("speculation", dear=9), factor("logging", dear=1), *factors_of(5)]
    conclusion = search(factors, Server(planted({"speculation", "logging"})))
    kept = conclusion.causes[0].workaround.kept
    assert "speculation" in kept
    assert "logging" not in kept
    assert conclusion.causes[0].workaround.changes == ("logging: removed",)


def test_an_off_switch_is_preferred_to_a_removal():
    factors = [
        factor("speculation", dear=1),
        factor("graphs", kind=FactorKind.DEFAULT, dear=5),
        *factors_of(5),
    ]
    conclusion = search(factors, Server(planted({"speculation", "graphs"})))
    assert "speculation" in conclusion.causes[0].workaround.kept


def test_a_numeric_culprit_is_bisected_to_the_largest_value_that_serves():
    offered = tuple(("--max-num-seqs", str(2**power)) for power in range(8))

    @dataclass
    class Batch(Server):
        def __call__(self, experiment: Experiment) -> Outcome:
            outcome = super().__call__(experiment)
            for _, tokens in experiment.substitutes:
                judgement = HUNG if int(tokens[-1]) > 8 else SERVES
                return Outcome(trial_id=outcome.trial_id, judgement=judgement, seconds=1.0)
            return outcome

    conclusion = search(factors_of(6), Batch(planted({"f03"})), clues=Clues(values={"f03": offered}))
    cause = conclusion.causes[0]
    assert cause.value_note == "8 works, 16 does not"
    assert cause.workaround.substitutes == (("f03", ("--max-num-seqs", "8")),)
    assert cause.proven


def test_a_sibling_of_an_enum_is_tried_before_the_user_loses_the_flag():
    offered = (("--attention-backend", "FLASH_ATTN"), ("--attention-backend", "TRITON"))
    server = Server(lambda kept: HUNG)

    def rule(experiment: Experiment) -> Outcome:
        server.asked.append(experiment)
        chosen = dict(experiment.substitutes).get("f03", ("", ""))[-1]
        judgement = HUNG if "f03" in experiment.kept and chosen != "TRITON" else SERVES
        return Outcome(trial_id=f"t{len(server.asked)}", judgement=judgement, seconds=1.0)

    conclusion = isolate(factors_of(6), rule, seed=1, clues=Clues(values={"f03": offered}))
    assert conclusion.causes[0].value_note == "TRITON works, FLASH_ATTN does not"
    assert dict(conclusion.causes[0].workaround.substitutes)["f03"][-1] == "TRITON"


def test_every_step_is_reported_with_a_sentence():
    steps: list[Step] = []
    conclusion = isolate(factors_of(8), Server(planted({"f02"})), seed=1, report=steps.append)
    assert tuple(steps) == tuple(replace(step, ranking=()) for step in conclusion.steps)
    assert all(step.concluded and "\n" not in step.concluded for step in steps)
    assert steps[1].concluded == "serves without any optional flag: the cause is among the 8 factors"


def test_forty_factors_cost_few_launches():
    launches = []
    for index in range(0, 40, 8):
        server = Server(planted({f"f{index:02d}"}))
        assert named(search(factors_of(40), server)) == {frozenset({f"f{index:02d}"})}
        launches.append(len(server.asked))
    assert sum(launches) / len(launches) <= 12  # without any clue: 5.3 bits, reproduction, safe mode, proof
