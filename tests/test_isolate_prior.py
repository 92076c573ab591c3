from shakedown.core import Factor, FactorKind, Judgement, Phase, Suspect, Verdict, Wait
from shakedown.isolate.prior import Clues, weigh


def factor(name: str, kind: FactorKind = FactorKind.FLAG) -> Factor:
    return Factor(name=name, kind=kind, was=name, now="")


OTHERS = [
    factor("prefix caching", FactorKind.DEFAULT),
    factor("chunked prefill", FactorKind.DEFAULT),
    factor("overlap scheduling", FactorKind.DEFAULT),
    factor("--dtype bfloat16"),
]


def likeliest(culprit: Factor, failing: Judgement) -> str:
    shares = weigh([*OTHERS, culprit], failing, Clues())
    return max(shares, key=lambda name: shares[name])


def test_a_flag_whose_words_the_first_cause_says_is_suspected_first():
    culprit = factor("--kv-cache-memory-bytes 1000000", FactorKind.FIT)
    cause = "ValueError: To serve at least one request, 0.04 GiB KV cache is needed, larger than the memory"
    failing = Judgement(verdict=Verdict.CRASHED, phase=Phase.KV_CACHE, cause=cause, fingerprint=cause)
    assert likeliest(culprit, failing) == culprit.name


def test_a_variable_about_the_place_where_it_waits_is_suspected_first():
    culprit = factor("SGLANG_TEST_STUCK_SCHEDULER_INIT=600", FactorKind.ENV)
    frame = "Scheduler.__init__ (scheduler.py:439)"
    failing = Judgement(
        verdict=Verdict.HUNG,
        phase=Phase.WARM_UP,
        wait=Wait.WAITING,
        cause=f"sglang::scheduler waits in {frame}",
        fingerprint=frame,
        suspect=Suspect(pid=1, name="sglang::scheduler", frame=frame, wchan=""),
    )
    assert likeliest(culprit, failing) == culprit.name


def test_a_flag_named_in_the_first_cause_is_suspected_first():
    culprit = factor("--mm-encoder-tp-mode data")
    cause = "ValueError: mm_encoder_tp_mode must be weights"
    failing = Judgement(verdict=Verdict.CRASHED, phase=Phase.CONFIG, cause=cause, fingerprint=cause)
    assert likeliest(culprit, failing) == culprit.name
