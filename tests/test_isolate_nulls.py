"""What is tried before any search: with the off-switches a user gave, and for marks that are missed."""

from test_isolate_search import OOM, SERVES, Server, factor, factors_of, named, planted, search

from shakedown.core import (
    CauseKind,
    Ended,
    Expectation,
    FactorKind,
    Judgement,
    Measured,
    Outcome,
    Phase,
    Purpose,
    Rung,
    Verdict,
    missed_fingerprint,
)
from shakedown.isolate import Ladder, isolate
from shakedown.isolate.judge import Showing, classify


def missed(*marks: str) -> Judgement:
    measured = [Measured(expectation=Expectation.read(mark), value=1.0) for mark in marks]
    return Judgement(verdict=Verdict.SLOW, phase=Phase.SERVING, fingerprint=missed_fingerprint(measured))


SLOW = missed("tokens_per_s >= 400")


def eager() -> list:
    return [factor("--enforce-eager", safe=True), factor("chunks", kind=FactorKind.DEFAULT), *factors_of(6)]


def test_an_off_switch_that_the_user_gave_stays_on_in_safe_mode():
    server = Server(planted({"f02"}))
    conclusion = search(eager(), server)
    assert named(conclusion) == {frozenset({"f02"})}
    safe_mode = next(e for e in server.asked if e.purpose is Purpose.SAFE_MODE)
    assert safe_mode.kept == {"--enforce-eager"}
    assert "--enforce-eager" in conclusion.cleared


def test_an_off_switch_that_fails_by_itself_is_proven():
    server = Server(planted({"--enforce-eager"}))
    conclusion = search(eager(), server)
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"--enforce-eager"})}


def test_a_base_that_fails_with_and_without_them_is_told_in_two_launches_more():
    server = Server(planted(set()))
    conclusion = search(eager(), server)
    assert [cause.kind for cause in conclusion.causes] == [CauseKind.BASE]
    assert [e.purpose for e in server.asked] == [
        Purpose.REPRODUCE,
        Purpose.SAFE_MODE,
        Purpose.PLAIN_NULL,
        Purpose.EVIDENCE,
    ]


def test_a_missed_mark_is_searched_with_the_defaults_on():
    """Without graphs no server is fast: safe mode would miss the mark whatever the flags are."""
    factors = [
        factor("graphs", kind=FactorKind.DEFAULT),
        factor("--tp 8", kind=FactorKind.FIT),
        *factors_of(6),
    ]

    def rule(kept):
        if "--tp 8" not in kept:
            return OOM
        return SLOW if "graphs" not in kept or "f04" in kept else SERVES

    conclusion = search(factors, Server(rule))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f04"})}


def slow_together(kept):
    if "graphs" not in kept:
        return SLOW
    return SLOW if {"f04", "--tp 4"} <= kept else SERVES


def test_what_makes_the_model_fit_is_blamed_where_the_mark_is_only_missed_with_it():
    """It stays on the floor of a search for a mark, so the flag alone seemed to be to blame."""
    fits = [factor("--tp 4", kind=FactorKind.FIT), factor("--quantization x", kind=FactorKind.FIT)]
    factors = [factor("graphs", kind=FactorKind.DEFAULT), *fits, *factors_of(6)]
    conclusion = search(factors, Server(slow_together))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"f04", "--tp 4"})}
    assert "--tp 4" in conclusion.causes[0].workaround.kept  # the flag goes, the model still fits


def test_what_makes_the_model_fit_costs_one_launch_where_it_is_innocent():
    factors = [factor("graphs", kind=FactorKind.DEFAULT), *factors_of(6)]
    fits = [factor("--tp 4", kind=FactorKind.FIT), factor("--quantization x", kind=FactorKind.FIT)]

    def rule(kept):
        return SLOW if "graphs" not in kept or "f04" in kept else SERVES

    without, within = Server(rule), Server(rule)
    search(factors, without)
    conclusion = search([*factors, *fits], within)
    assert named(conclusion) == {frozenset({"f04"})}
    assert len(within.asked) == len(without.asked) + 1


def test_an_off_switch_that_makes_it_slow_is_proven():
    factors = [factor("--enforce-eager", safe=True), *factors_of(6)]
    conclusion = search(factors, Server(planted({"--enforce-eager"}, failure=SLOW)))
    assert conclusion.ended is Ended.PROVEN
    assert named(conclusion) == {frozenset({"--enforce-eager"})}


def test_a_default_that_makes_it_slow_is_proven():
    factors = [factor("overlap", kind=FactorKind.DEFAULT), *factors_of(6)]
    conclusion = search(factors, Server(planted({"overlap"}, failure=SLOW)))
    assert named(conclusion) == {frozenset({"overlap"})}


def test_only_failures_that_miss_a_common_mark_are_one_failure():
    both, late = missed("tokens_per_s >= 4", "ttft_ms <= 9"), missed("ttft_ms <= 9")
    crawl = Judgement(verdict=Verdict.SLOW, phase=Phase.SERVING, fingerprint="canary: slow decode")
    assert classify(both, SLOW.signature) is classify(SLOW, both.signature) is Showing.FAILS
    assert classify(late, SLOW.signature) is classify(crawl, SLOW.signature) is Showing.OTHER


def test_a_base_that_is_slow_is_not_blamed_on_its_weights_because_fewer_layers_are_faster():
    rungs = (Rung(name="matmul", title="x"), Rung(name="tiny", title="y", same=True))
    ladder = Ladder(rungs=rungs, beyond="the weights of this model")

    def oracle(experiment):
        judgement = SERVES if experiment.rung else SLOW
        return Outcome(trial_id=experiment.rung or "t", judgement=judgement, seconds=1.0)

    conclusion = isolate(factors_of(3), oracle, seed=1, ladder=ladder)
    assert [(cause.kind, cause.rung) for cause in conclusion.causes] == [(CauseKind.BASE, None)]
    assert conclusion.ended is Ended.NOT_PROVEN
    assert "tiny" not in {step.experiment.rung for step in conclusion.steps}
