"""Planted faults of an engine and its drafter, each named rightly; healthy ones never blamed, in seconds.

No engine runs: `drafting_engine` stands for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from drafter_targets import save_deepseek
from drafting_engine import (
    DRAFTED,
    DRAFTS,
    GENERATED,
    PROMPT,
    Engine,
    Lesson,
    learn_by_heart,
    questions,
    right_states,
    untaught,
)

from shakedown.acceptance.expect import expect
from shakedown.acceptance.replay import Standing
from shakedown.acceptance.rounds import Tally
from shakedown.acceptance.statistics import Interval
from shakedown.acceptance.verdict import Blame, Finding, Outcome, Shown, judge
from shakedown.drafter.architecture import Drafter
from shakedown.drafter.export import export_drafter
from shakedown.drafter.rotary import Rope
from shakedown.drafter.rungs import Ladder
from shakedown.drafter.samples import Finish, Sample, write_sample
from shakedown.drafter.tapped import cut
from shakedown.errors import UsageError
from shakedown.jobs.accept_expect import ReferenceDrafter, expect_drafter, expect_elsewhere, requests_of
from shakedown.jobs.accept_measure import Plan
from shakedown.jobs.accept_states import judge_states

pytestmark = pytest.mark.slow  # the drafter learns for some seconds


class Quiet:
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: object) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    finding: Finding
    faults: dict[str, str]
    measured: float


@pytest.fixture(scope="module")
def lesson(tmp_path_factory) -> Iterator[Lesson]:
    threads = torch.get_num_threads()
    yield learn_by_heart(tmp_path_factory.mktemp("target"))
    torch.set_num_threads(threads)


PLAN = Plan(questions=(), tokens=0, most=0, margin=0.1, drafts=DRAFTS)


def judged(
    engine: Engine, *, reference: ReferenceDrafter | None = None, elsewhere: Interval | None = None
) -> Judged:
    """As `accept` goes about it: the reference on its own states first, then the engine's states."""
    reference = reference or engine.lesson.reference
    answers, tapped = engine.serve()
    documents = reference.states(requests_of(answers))
    comparison = expect_drafter(reference, documents, answers, DRAFTS, PLAN.margin)
    seen = judge_states(reference, answers, tapped, PLAN, Quiet())
    rounds = [each for answer in answers for each in answer.generated.rounds or ()]
    measured = 1 + sum(rounds) / len(rounds)
    shown = Shown(
        measured=Interval(value=measured, low=None, high=None),
        reference=comparison,
        engine_states=seen.cell,
        cost_of_states=seen.cost,
        proposals=seen.cell.alike if seen.cell else None,
        states=seen.findings,
        break_even=1.4,
        elsewhere=elsewhere,
    )
    return Judged(
        finding=judge(shown), faults={each.stage: each.fault for each in seen.findings}, measured=measured
    )


def shifted(by: int) -> Callable[[Ladder], torch.Tensor]:
    return lambda ladder: right_states(ladder, [2 + by, 4 + by, 5 + by])


def without_residual(ladder: Ladder) -> torch.Tensor:
    return torch.stack([ladder.branches[rung] for rung in (2, 4, 5)])


def normed(ladder: Ladder) -> torch.Tensor:
    return ladder.normed()[[2, 4, 5]]


def permuted(ladder: Ladder) -> torch.Tensor:
    return right_states(ladder, [5, 2, 4])


def late_in_decode(ladder: Ladder) -> torch.Tensor:
    right = right_states(ladder)
    return torch.cat([right[:, :PROMPT], right[:, PROMPT - 1 : -1]], dim=1)


def one_round_late(ladder: Ladder) -> torch.Tensor:
    """What a buffer holds that is read before it is written: the states of the step before, row by row."""
    right = right_states(ladder)
    at = torch.arange(right.shape[1])
    source = torch.where(at < PROMPT, at, at - 1 - (at - PROMPT) % 3)
    return right[:, source]


@pytest.mark.parametrize(
    ("hands_over", "fault"),
    [
        (shifted(+1), "layer_shift"),
        (shifted(-1), "layer_shift"),
        (without_residual, "residual_missing"),
        (normed, "final_norm_applied"),
        (permuted, "permuted_slots"),
    ],
    ids=["ids +1", "ids -1", "residual dropped", "final norm applied", "slots permuted"],
)
def test_wrong_states_are_the_captures_fault_and_named(lesson, hands_over, fault):
    found = judged(Engine(lesson=lesson, hands_over=hands_over))
    assert (found.finding.outcome, found.finding.blame) == (Outcome.BELOW, Blame.CAPTURE)
    assert found.faults == {"prefill": fault, "verification": fault}
    assert found.finding.expect_bound is not None


@pytest.mark.parametrize(
    ("hands_over", "faults"),
    [(late_in_decode, {"token_shift"}), (one_round_late, {"stale"})],
    ids=["a token late", "a round late"],
)
def test_states_that_are_late_in_decode_alone_are_seen_there_alone(lesson, hands_over, faults):
    found = judged(Engine(lesson=lesson, hands_over=hands_over))
    assert found.finding.blame is Blame.CAPTURE
    assert found.faults["prefill"] == "same"
    assert found.faults["verification"] in faults
    assert found.finding.why[0].startswith("states of verification")


def other_rope(lesson: Lesson) -> Engine:
    right = lesson.reference.drafter
    config = replace(lesson.reference.config, rope=Rope(theta=12.0))
    wrong = Drafter(config, right.embedding)
    wrong.load_state_dict(right.state_dict())
    return Engine(lesson=lesson, drafter=wrong)


def other_embedding(lesson: Lesson) -> Engine:
    wrong = copy.deepcopy(lesson.reference.drafter)
    wrong.attach_embedding(
        wrong.embedding[torch.randperm(len(wrong.embedding), generator=torch.Generator().manual_seed(5))]
    )
    return Engine(lesson=lesson, drafter=wrong)


def absolute_map(lesson: Lesson) -> Engine:
    """Offsets taken for token ids."""
    right = lesson.reference.vocabulary
    wrong = SimpleNamespace(target_ids=right.d2t, size=right.size, vocab=right.vocab)
    return Engine(lesson=lesson, vocabulary=wrong)


@pytest.mark.parametrize("engine", [other_rope, other_embedding, absolute_map])
def test_a_drafter_computed_wrongly_is_the_drafter_paths_fault(lesson, engine):
    found = judged(engine(lesson))
    assert (found.finding.outcome, found.finding.blame) == (Outcome.BELOW, Blame.DRAFTER_PATH), found
    assert set(found.faults.values()) == {"same"}


def test_a_drafter_for_another_template_is_the_workloads_fault(lesson):
    """The same answers after other prompts: the engine does all that can be done."""
    known = lesson.reference.vocabulary.target_ids
    others = [
        (*known[[7 * n % 70, 11, 3 * n % 70, 29]].tolist(), *text[PROMPT:][::-1])
        for n, text in enumerate(lesson.texts)
    ]
    asked = requests_of(questions(lesson.texts))
    trained = expect(lesson.reference.matrices(lesson.reference.states(asked), DRAFTS)).tokens_per_round
    found = judged(Engine(lesson=lesson.on(others)), elsewhere=trained)
    assert (found.finding.outcome, found.finding.blame) == (Outcome.AS_TRAINED, Blame.WORKLOAD)
    assert "on what it was trained on" in found.finding.why[0]


def test_text_past_the_end_is_not_taken_for_another_workload(lesson):
    """An engine that tells only sums: text that nobody was trained on, after the end, is in them."""
    known, past = lesson.reference.vocabulary.target_ids, GENERATED // 2
    junk = [known[torch.arange(past) * (7 + 2 * n) % DRAFTED].tolist() for n in range(len(lesson.texts))]
    texts = [(*text[:-past], *after) for text, after in zip(lesson.texts, junk, strict=True)]
    served, _ = Engine(lesson=lesson.on(texts)).serve()
    answers = [
        replace(
            each,
            generated=replace(each.generated, rounds=None),
            tally=Tally.of_rounds(each.generated.rounds or (), DRAFTS),
            past=past,
        )
        for each in served
    ]
    documents = lesson.reference.states(requests_of(answers))
    found = expect_drafter(lesson.reference, documents, answers, DRAFTS, 0.2)
    asked = requests_of(questions(lesson.texts))
    trained = expect(lesson.reference.matrices(lesson.reference.states(asked), DRAFTS)).tokens_per_round
    assert found.expected.value < trained.value - 0.5
    shown = Shown(measured=found.expected, reference=replace(found, standing=Standing.EQUAL))
    assert judge(replace(shown, elsewhere=trained)).blame is Blame.NONE


def test_a_sampled_text_is_held_against_what_the_target_would_have_chosen(lesson, tmp_path):
    """The drafter says what the texts say, which the random target itself never would."""
    expected = []
    for temperature in (0.0, 0.8):
        file = tmp_path / f"samples-{temperature}.jsonl"
        with file.open("wb") as out:
            for number, text in enumerate(lesson.texts):
                sample = Sample(
                    id=str(number),
                    messages=[],
                    token_ids=text,
                    mask=[(PROMPT, len(text))],
                    model="m",
                    template="t",
                    sampling={"temperature": temperature},
                    finish=Finish.LENGTH,
                )
                write_sample(out, sample)
        found, _ = expect_elsewhere(lesson.reference, file, DRAFTS, 1000)
        expected.append(found.value)
    assert expected[0] > 2
    assert expected[1] < 1.2


def test_an_answer_that_is_the_end_mark_alone_is_no_obstacle(lesson):
    engine = Engine(lesson=lesson)
    answers, tapped = engine.serve()
    whole = answers[0].generated
    answers[0] = replace(answers[0], generated=replace(whole, tokens=whole.tokens[:1], rounds=()))
    tapped[0] = cut(tapped[0], PROMPT)
    seen = judge_states(lesson.reference, answers, tapped, PLAN, Quiet())
    assert seen.cell is not None
    assert seen.cell.standing is Standing.EQUAL
    assert seen.cell.requests == len(answers) - 1


def test_a_drafter_that_never_learnt_is_the_drafters_fault(lesson):
    torch.manual_seed(9)
    random = Drafter(lesson.reference.config, lesson.reference.drafter.embedding)
    reference = replace(lesson.reference, drafter=random)
    found = judged(Engine(lesson=lesson, drafter=random), reference=reference)
    assert (found.finding.outcome, found.finding.blame) == (Outcome.AS_TRAINED, Blame.DRAFTER)
    assert found.measured < 1.2


def rounded(ladder: Ladder) -> torch.Tensor:
    return right_states(ladder).bfloat16().float()


def noisy(ladder: Ladder) -> torch.Tensor:
    right = right_states(ladder)
    chance = torch.Generator().manual_seed(right.shape[1])
    return right * (1 + 0.004 * torch.randn(right.shape, generator=chance))


def in_bfloat16(lesson: Lesson) -> Drafter:
    drafter = copy.deepcopy(lesson.reference.drafter)
    drafter.load_state_dict({k: v.bfloat16().float() for k, v in drafter.state_dict().items()})
    return drafter


@pytest.mark.parametrize(
    "healthy",
    [
        lambda lesson: Engine(lesson=lesson),
        lambda lesson: Engine(lesson=lesson, hands_over=rounded),
        lambda lesson: Engine(lesson=lesson, hands_over=noisy),
        lambda lesson: Engine(lesson=lesson, drafter=in_bfloat16(lesson)),
        lambda lesson: Engine(lesson=lesson, hands_over=rounded, drafter=in_bfloat16(lesson)),
        lambda lesson: Engine(lesson=lesson.on(lesson.texts[:8])),
    ],
    ids=[
        "exact",
        "states in bfloat16",
        "noisy states",
        "drafter in bfloat16",
        "all in bfloat16",
        "fewer texts",
    ],
)
def test_a_healthy_engine_is_not_blamed(lesson, healthy):
    found = judged(healthy(lesson))
    assert found.finding.blame in {Blame.NONE, Blame.UNDECIDED}, found
    assert set(found.faults.values()) <= {"same", "undecided"}
    assert found.measured > 2


def test_a_drafter_of_other_layers_has_no_reference_and_is_not_judged_by_a_wrong_one(lesson, tmp_path):
    config = replace(lesson.reference.config, aux_inputs_of=(1, 4, 6))
    d2t = lesson.reference.vocabulary.d2t
    export_drafter(tmp_path / "d", config, lesson.reference.drafter.state_dict(), d2t, engines=())
    with pytest.raises(UsageError, match=r"reads the inputs of layers \[1, 4, 6\]"):
        ReferenceDrafter.load(tmp_path / "d", lesson.reference.target.path)


def test_states_of_latent_attention_and_experts_are_told_apart_in_decode(tmp_path):
    """A small random DeepSeek-V3 with a drafter that knows nothing: its states are judged all the same."""
    threads = torch.get_num_threads()
    lesson = untaught(tmp_path / "target", save_deepseek)
    healthy = judged(Engine(lesson=lesson))
    assert set(healthy.faults.values()) == {"same"}

    def one_off_in_decode(ladder: Ladder) -> torch.Tensor:
        right, wrong = right_states(ladder), shifted(+1)(ladder)
        return torch.cat([right[:, :PROMPT], wrong[:, PROMPT:]], dim=1)

    found = judged(Engine(lesson=lesson, hands_over=one_off_in_decode))
    assert found.faults == {"prefill": "same", "verification": "layer_shift"}
    assert found.finding.blame is Blame.CAPTURE
    torch.set_num_threads(threads)
