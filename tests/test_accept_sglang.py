"""SGLang 0.5.14's own scheduler and EAGLE worker on a CPU: its plug-in writes the reference's states.

Its CUDA kernels are replaced by plain torch (`sglang_cpu/plain_kernels.py`), its drafts by spoilt right ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import overfitted
import pytest
import torch
from accept_engines import install_plant
from overfitted import config_for
from transformers import LlamaConfig, LlamaForCausalLM

from shakedown.acceptance.rounds import Tally, place_rounds, rounds_of_pieces
from shakedown.drafter.architecture import Drafter
from shakedown.drafter.export import export_drafter
from shakedown.drafter.tapped import Tapped, assemble, install_plugin, read_steps
from shakedown.drafter.target import read_target
from shakedown.drafter.vocabulary import choose_vocabulary
from shakedown.jobs.accept_answers import Answered
from shakedown.jobs.accept_expect import ReferenceDrafter
from shakedown.jobs.accept_measure import Plan
from shakedown.jobs.accept_questions import Question
from shakedown.jobs.accept_states import judge_states
from shakedown.jobs.draft_lint import shipped_surveys
from shakedown.probe.generation import Generated
from shakedown.provision import SGLANG, prepare_engine

pytestmark = pytest.mark.engine

PROGRAM = Path(__file__).parent / "sglang_cpu" / "in_one_process.py"
VOCAB, TOKENS, CHUNK = 97, 40, 16
OWN_LENGTHS = (5, 9, 30, 12, 3)  # of the prompts, after twenty tokens that all have


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    model: LlamaForCausalLM
    target: Path
    drafter: Path
    prompts: list[list[int]]
    texts: list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    answers: list[dict]
    proposals: dict[tuple[str, int], list[int]]
    tapped: list[Tapped | None]


class Quiet:
    def say(self, text: str) -> None:
        pass

    def progress(self, progress: object) -> None:
        pass


@pytest.fixture(scope="module")
def python() -> Path:
    return prepare_engine(SGLANG, lambda text: print(text, file=sys.stderr))


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    """A random Llama of eight layers, and a drafter that knows nothing."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = LlamaConfig(
        vocab_size=VOCAB, initializer_range=0.25, bos_token_id=1, eos_token_id=None, **sizes, **heads
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder / "target")
    target = read_target(folder / "target")
    vocabulary = choose_vocabulary(torch.randint(1, 99, (VOCAB,)), 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overfitted, "DRAFT_VOCABULARY", 64)
        drafter = Drafter(config_for(target), target.embedding().float())
    with torch.no_grad():
        for weight in drafter.midlayer.self_attn.parameters():
            weight.mul_(8)  # what it proposes depends on where tokens stand
    out = folder / "drafter"
    export_drafter(out, drafter.config, drafter.state_dict(), vocabulary.d2t, engines=shipped_surveys())
    head = torch.randint(3, VOCAB, (20,)).tolist()
    prompts = [head + torch.randint(3, VOCAB, (length,)).tolist() for length in OWN_LENGTHS]
    return Case(
        model=model,
        target=folder / "target",
        drafter=out,
        prompts=prompts,
        texts=[answer(model, prompt) for prompt in prompts],
    )


@torch.no_grad()
def answer(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0].tolist()


def run(python: Path, case: Case, folder: Path, *, plant: str = "", **options: object) -> Ran:
    steps, plugin = folder / "steps", folder / "plugin"
    for each in (steps, plugin):
        each.mkdir()
    planted = install_plant(folder / "plant", plant, "sglang") if plant else {"PLANTED": "", "PYTHONPATH": ""}
    env = {**os.environ, **planted, **install_plugin(plugin, planted, steps, "sglang")}
    first, *three, last = case.prompts
    settings = {"target": str(case.target), "drafter": str(case.drafter), "out": str(folder)}
    settings |= {"prompts": [[first], three, [last]], "texts": case.texts, "tokens": TOKENS}
    settings |= {"options": {"chunked_prefill_size": CHUNK, **options}}
    (folder / "settings.json").write_text(json.dumps(settings))
    command = [str(python), str(PROGRAM), str(folder / "settings.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = list(json.loads((folder / "answers.json").read_text()).values())
    proposals = json.loads((folder / "proposals.json").read_text())
    texts = [prompt + each["tokens"] for prompt, each in zip(case.prompts, answers, strict=True)]
    assert texts == case.texts
    return Ran(
        answers=answers,
        proposals={(name, start): tokens for name, start, tokens in proposals},
        tapped=assemble(list(read_steps(steps)), texts),
    )


@torch.no_grad()
def right_states(case: Case, text: list[int]) -> torch.Tensor:
    """[slots, T - 1, H]: the inputs of layers 2, N/2 and N - 3."""
    states = case.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([states[k][0][:-1] for k in (2, 4, 5)])


@pytest.mark.parametrize("overlap", [True, False])
def test_chunks_cached_beginnings_and_rejected_drafts_leave_the_references_states(
    python, case, tmp_path, overlap
):
    ran = run(python, case, tmp_path, disable_overlap_schedule=not overlap)
    assert [each["cached"] for each in ran.answers] == [0, 19, 19, 19, 19]
    for text, tapped, told in zip(case.texts, ran.tapped, ran.answers, strict=True):
        assert tapped is not None
        assert tapped.tokens.tolist() == text[:-1]
        right = right_states(case, text)
        assert float(((tapped.aux - right).norm(dim=-1) / right.norm(dim=-1)).max()) < 1e-4
        rounds = rounds_of_pieces(told["pieces"], told["histogram"])
        assert rounds is not None
        assert place_rounds(rounds, TOKENS) is not None
        assert 0 < sum(each == 0 for each in rounds) < len(rounds)


def findings(case: Case, ran: Ran) -> dict[str, str]:
    answers = []
    for prompt, told in zip(case.prompts, ran.answers, strict=True):
        rounds = rounds_of_pieces(told["pieces"], told["histogram"])
        assert rounds is not None
        generated = Generated(tokens=tuple(told["tokens"]), rounds=rounds)
        question = Question(kind="", text="", prompt=tuple(prompt))
        answers.append(Answered(question=question, generated=generated, tally=Tally.of_rounds(rounds, 3)))
    tapped = [each for each in ran.tapped if each is not None]
    plan = Plan(questions=(), tokens=TOKENS, most=5, margin=0.1, drafts=3)
    reference = ReferenceDrafter.load(case.drafter, case.target)
    return {
        each.stage: each.fault for each in judge_states(reference, answers, tapped, plan, Quiet()).findings
    }


@pytest.mark.parametrize(
    ("plant", "pattern"),
    [
        ("ids+1", "layer_shift"),
        ("residual", "residual_missing"),
        ("permuted", "permuted_slots"),
        ("late", "stale"),
    ],
)
def test_planted_states_are_named(python, case, tmp_path, plant, pattern):
    prefill = "same" if plant == "late" else pattern
    found = findings(case, run(python, case, tmp_path, plant=plant))
    assert found == {"chunked prefill": prefill, "verification": pattern}


def test_a_drafter_that_is_computed_wrongly_has_right_states_and_other_proposals(python, case, tmp_path):
    right = run(python, case, made(tmp_path / "right"))
    for plant in ("d2t", "embedding"):
        wrong = run(python, case, made(tmp_path / plant), plant=plant)
        assert set(findings(case, wrong).values()) == {"same"}
        both = right.proposals.keys() & wrong.proposals.keys()
        assert any(right.proposals[each] != wrong.proposals[each] for each in both)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
