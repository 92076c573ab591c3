import pytest

from shakedown.core import Phase, Purpose, Signature, Verdict
from shakedown.jobs.oracle import token_decides


def failing(verdict: Verdict, phase: Phase) -> Signature:
    return Signature(verdict=verdict, phase=phase, fingerprint="x")


@pytest.mark.parametrize("purpose", [Purpose.SPLIT, Purpose.ALONE, Purpose.ONE_LESS, Purpose.PEEL])
def test_between_the_ends_of_a_start_up_failure_one_token_decides(purpose):
    assert token_decides(purpose, failing(Verdict.HUNG, Phase.DIST_INIT))


@pytest.mark.parametrize("purpose", [Purpose.REPRODUCE, Purpose.SAFE_MODE, Purpose.WORKAROUND, Purpose.VALUE])
def test_the_ends_themselves_must_also_be_right(purpose):
    assert not token_decides(purpose, failing(Verdict.HUNG, Phase.DIST_INIT))


@pytest.mark.parametrize(
    "signature",
    [
        failing(Verdict.WRONG, Phase.SERVING),
        failing(Verdict.SLOW, Phase.SERVING),
        failing(Verdict.CRASHED, Phase.SERVING),
    ],
)
def test_what_fails_only_when_asked_is_asked_in_full_every_time(signature):
    assert not token_decides(Purpose.SPLIT, signature)
