"""Which failures are the same one, when a look decides, and what sets a launch can keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shakedown.core import Factor, FactorKind, Judgement, LogNormal, Match, Phase, Signature, Verdict, Wait
from shakedown.isolate import Clues, compare, forecast
from shakedown.isolate.closure import Dependencies
from shakedown.isolate.judge import Showing, classify, decide
from shakedown.isolate.prior import weigh

SURE = ((0.99, 1.0),)


def hung(phase: Phase, wait: Wait = Wait.WAITING, fingerprint: str = "recv (shm.py)") -> Signature:
    return Signature(verdict=Verdict.HUNG, phase=phase, fingerprint=fingerprint, wait=wait)


def crashed(phase: Phase, fingerprint: str) -> Signature:
    return Signature(verdict=Verdict.CRASHED, phase=phase, fingerprint=fingerprint)


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        (hung(Phase.DIST_INIT), hung(Phase.DIST_INIT), Match.SAME),
        (hung(Phase.DIST_INIT), hung(Phase.DIST_INIT, fingerprint="another late rank"), Match.COMPATIBLE),
        (hung(Phase.GRAPH_CAPTURE), hung(Phase.WARM_UP), Match.COMPATIBLE),  # graph against eager
        (hung(Phase.KV_CACHE), hung(Phase.WARM_UP), Match.DIFFERENT),
        (hung(Phase.DIST_INIT), hung(Phase.WEIGHT_LOAD), Match.DIFFERENT),
        (hung(Phase.DIST_INIT), hung(Phase.DIST_INIT, wait=Wait.SPINNING), Match.DIFFERENT),
        (hung(Phase.CONFIG), crashed(Phase.CONFIG, ""), Match.DIFFERENT),
        (crashed(Phase.CONFIG, "E: a"), crashed(Phase.IMPORT, "E: a"), Match.COMPATIBLE),
        (
            crashed(Phase.CONFIG, "E: no flag x here"),
            crashed(Phase.CONFIG, "E: no flag y here"),
            Match.COMPATIBLE,
        ),
        (
            crashed(Phase.CONFIG, "ValueError: nnodes"),
            crashed(Phase.CONFIG, "OSError: bind"),
            Match.DIFFERENT,
        ),
        (crashed(Phase.CONFIG, ""), crashed(Phase.CONFIG, "OSError: bind"), Match.COMPATIBLE),
    ],
)
def test_two_failures_are_same_compatible_or_different(a, b, match):
    assert compare(a, b) is match
    assert compare(b, a) is match


def test_surroundings_and_undecided_outcomes_say_nothing():
    target = hung(Phase.DIST_INIT)
    held = Judgement(verdict=Verdict.CRASHED, phase=Phase.BIND, environment=True)
    unknown = Judgement(verdict=Verdict.UNDECIDED, phase=Phase.DIST_INIT)
    assert classify(held, target) is classify(unknown, target) is Showing.UNKNOWN


def test_one_look_decides_what_never_flakes_and_passes_add_up_for_what_does():
    assert decide(1, 0, SURE) is Showing.FAILS
    assert decide(0, 1, SURE) is Showing.SERVES
    assert [decide(0, n, ((0.7, 1.0),)) for n in (2, 3)] == [Showing.UNKNOWN, Showing.SERVES]
    assert [decide(0, n, ((0.4, 1.0),)) for n in (5, 6)] == [Showing.UNKNOWN, Showing.SERVES]
    assert decide(1, 0, ((0.4, 1.0),)) is Showing.FAILS
    assert decide(1, 0, ((0.1, 1.0),)) is Showing.UNKNOWN


def test_a_failure_outweighs_a_majority_of_passes():
    assert decide(2, 4, ((0.4, 1.0),)) is Showing.FAILS


def factors(needs: dict[str, set[str]]) -> list[Factor]:
    return [
        Factor(name=name, kind=FactorKind.FLAG, was=name, now="removed", needs=frozenset(needs[name]))
        for name in needs
    ]


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdefg")), min_size=1))
def test_sets_stay_closed_whatever_needs_what_circles_included(needs):
    dependencies = Dependencies(factors(needs))
    everything = frozenset(needs)
    for name in needs:
        kept = dependencies.with_needs({name})
        assert name in kept
        assert dependencies.closed(kept) == kept
        less = dependencies.without(everything, {name})
        assert name not in less
        assert dependencies.closed(less) == less
    core = dependencies.core(everything)
    assert core
    assert dependencies.with_needs(core) == everything


def test_frames_and_phase_raise_the_suspicion_of_the_flags_they_point_at():
    named = factors(
        {"--disable-custom-all-reduce": set(), "--speculative": set(), "--served-model-name": set()}
    )
    failing = Judgement(verdict=Verdict.HUNG, phase=Phase.GRAPH_CAPTURE, wait=Wait.SPINNING)
    weights = weigh(named, failing, Clues(stacks=("all_reduce (custom_all_reduce.py)",)))
    assert sum(weights.values()) == pytest.approx(1)
    assert max(weights, key=weights.__getitem__) == "--disable-custom-all-reduce"
    assert min(weights, key=weights.__getitem__) == "--served-model-name"


def test_the_forecast_grows_slowly_and_never_passes_the_limit():
    fails, passes = LogNormal(median_s=60, spread=0.2), LogNormal(median_s=300, spread=0.2)
    few, many = (forecast(count, fails=fails, passes=passes) for count in (12, 40))
    assert few.launches <= many.launches <= few.launches + 3
    assert many.seconds < many.at_most_seconds
    assert forecast(40, fails=fails, passes=passes, max_launches=5).at_most_launches == 5
    steady = forecast(12, fails=fails, passes=LogNormal(median_s=300, spread=0.01))
    assert steady.at_most_seconds < few.at_most_seconds
