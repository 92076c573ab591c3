from dataclasses import replace

from shakedown.core import Evidence, Factor, FactorKind, Judgement, Phase, Suspect, Verdict, Wait
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


def test_a_flag_quoted_with_its_value_is_suspected_before_what_the_cause_mentions_besides():
    """Seen with SGLang on a GPU: the last sentence cost a launch without the drafter, and four more."""
    speculation = factor("speculative decoding (--speculative-algorithm EAGLE3)", FactorKind.GROUP)
    flag = Factor(
        name="--mem-fraction-static 0.001", kind=FactorKind.FIT, was="--mem-fraction-static 0.001", now=""
    )
    cause = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.001."
        " Raise it above 0.033. If using speculative decoding, draft weights are now counted."
    )
    failing = Judgement(verdict=Verdict.CRASHED, phase=Phase.KV_CACHE, cause=cause, fingerprint=cause)
    shares = weigh([*OTHERS, speculation, flag], failing, Clues())
    assert max(shares, key=lambda name: shares[name]) == flag.name


def test_the_traceback_of_a_crash_tells_whose_part_it_was():
    """A drafter whose file is cut: the exception alone names no part of the engine."""
    speculation = factor("speculative decoding (--speculative-algorithm EAGLE3)", FactorKind.GROUP)
    loader = factor("--load-format safetensors")
    cause = "SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
    places = "load_file (safetensors/torch.py), load_model (srt/speculative/eagle_worker.py)"
    bare = Judgement(verdict=Verdict.CRASHED, phase=Phase.WEIGHT_LOAD, cause=cause, fingerprint=cause)
    told = replace(bare, evidence=(Evidence(kind="traceback", text=places, at_s=1.0),))
    alone, seen = (weigh([*OTHERS, loader, speculation], it, Clues()) for it in (bare, told))
    assert seen[speculation.name] > 2 * alone[speculation.name]
    assert max(seen, key=lambda name: seen[name]) == speculation.name
