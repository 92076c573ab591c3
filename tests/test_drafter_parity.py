"""Parity: healthy states are the same, and each planted fault is called by its name."""

import dataclasses
import json

import pytest
import torch
from drafter_targets import VOCABULARY, save_deepseek, save_llama, save_qwen3_moe

from shakedown.drafter.capture import Request, batches
from shakedown.drafter.decoder import Decoder
from shakedown.drafter.ladders import build_ladders, climb
from shakedown.drafter.parity import compare_states
from shakedown.drafter.patterns import Fault
from shakedown.drafter.rungs import ROWS, Ladder, kept_rows, pick_rows
from shakedown.drafter.target import Target, read_target

AUX = (2, 4, 5)
FINAL = 9  # the rung after the final norm of eight layers
EXPECTED = (*AUX, FINAL)


def request(sample: int, length: int) -> Request:
    random = torch.Generator().manual_seed(sample)
    mask = torch.ones(length, dtype=torch.uint8)
    return Request(
        sample=sample,
        place=f"samples.jsonl:{sample + 1}",
        tokens=torch.randint(VOCABULARY, (length,), generator=random, dtype=torch.int32),
        mask=mask,
        rows=torch.arange(length),
    )


REQUESTS = [request(sample, length) for sample, length in enumerate((40, 61, 33, 57))]


@dataclasses.dataclass(frozen=True)
class Bench:
    """A reference, and what a healthy engine would have captured in bfloat16 at every rung."""

    target: Target
    ladders: list[Ladder]
    rungs: list[torch.Tensor]  # a document: [N + 2, T, H]
    branches: list[dict[int, torch.Tensor]]
    parts: list[torch.Tensor]  # a document: one of two ranks' share of what layer 3 adds to rung 4

    def held(self, *rungs: int) -> list[torch.Tensor]:
        return [document[list(rungs)] for document in self.rungs]


@pytest.fixture(scope="module", params=[save_llama, save_qwen3_moe, save_deepseek])
def bench(request, tmp_path_factory) -> Bench:
    return make_bench(request.param, tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Bench:
    return make_bench(save_llama, tmp_path_factory.mktemp("target"))


def make_bench(save, folder) -> Bench:
    save(folder)
    target = read_target(folder)
    ladders = build_ladders(target, REQUESTS, device="cpu", branches=AUX)
    found = climb(Decoder(target, torch.bfloat16, "cpu"), list(batches(REQUESTS, 4096)), AUX, print)
    return Bench(
        target=target,
        ladders=ladders,
        rungs=[found[request.sample][0].clone() for request in REQUESTS],
        branches=[found[request.sample][1] for request in REQUESTS],
        parts=[half_of_a_sum(target, request) for request in REQUESTS] if save is save_llama else [],
    )


def half_of_a_sum(target: Target, request: Request) -> torch.Tensor:
    """What rank 0 of two has after its half of layer 3's down projection, before the sum over ranks."""
    decoder = Decoder(target, torch.float32, "cpu")
    inputs: list[torch.Tensor] = []
    with torch.no_grad(), decoder.loaded(range(4)):
        down = decoder._model.layers[3].mlp.down_proj
        down.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        decoder.forward(decoder.embed(request.tokens.long()[None]))
        half = down.in_features // 2
        part: torch.Tensor = inputs[0][0, :, :half] @ down.weight[:, :half].T
    return part


def test_bfloat16_against_float32_is_the_same(bench):
    found = compare_states(bench.held(*EXPECTED), bench.ladders, EXPECTED)
    assert found.same, found.what
    assert [slot.best for slot in found.slots] == list(EXPECTED)
    assert all(slot.margin > 5 for slot in found.slots)
    assert found.documents == 4
    assert found.tokens == sum(int(kept_rows(ladder).sum()) for ladder in bench.ladders)


def test_the_reference_itself_is_the_same(bench):
    exact = [ladder.rungs[list(EXPECTED)] for ladder in bench.ladders]
    found = compare_states(exact, bench.ladders, EXPECTED)
    assert found.same
    assert max(slot.error for slot in found.slots) == 0


@pytest.mark.parametrize("shift", [-1, 1])
def test_layers_off_by_one_are_named_with_their_direction(bench, shift):
    wrong = [rung + shift for rung in AUX]
    found = compare_states(bench.held(*wrong, FINAL), bench.ladders, EXPECTED)
    assert found.fault is Fault.LAYER_SHIFT
    assert f"shifted by {shift:+d}" in found.what


def test_one_slot_of_another_layer_is_named(bench):
    found = compare_states(bench.held(2, 6, 5, FINAL), bench.ladders, EXPECTED)
    assert found.fault is Fault.LAYER_SHIFT
    assert "slot 1 holds rung 6 for 4" in found.what
    found = compare_states(bench.held(0, 6, 5, FINAL), bench.ladders, EXPECTED)
    assert found.fault is Fault.OTHER_LAYER


def test_permuted_slots_are_named_with_their_order(bench):
    found = compare_states(bench.held(5, 2, 4, FINAL), bench.ladders, EXPECTED)
    assert found.fault is Fault.PERMUTED
    assert "[5, 2, 4, 9]" in found.what


@pytest.mark.parametrize(("roll", "said"), [(1, "1 earlier"), (-1, "1 later"), (2, "2 earlier")])
def test_a_shift_by_tokens_is_named_with_its_direction(bench, roll, said):
    wrong = [states.roll(roll, dims=1) for states in bench.held(*EXPECTED)]
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.TOKEN_SHIFT
    assert said in found.what


def test_a_missing_residual_is_named(bench):
    wrong = bench.held(*EXPECTED)
    for states, branches in zip(wrong, bench.branches, strict=True):
        states[1] = branches[4]
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.RESIDUAL_MISSING
    assert "slot 1" in found.what


def test_a_residual_without_its_last_addition_is_named(bench):
    wrong = bench.held(*EXPECTED)
    for states, branches in zip(wrong, bench.branches, strict=True):
        states[1] -= branches[4]
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.BRANCH_MISSING


def test_one_ranks_part_of_a_sum_is_named_with_what_is_missing(llama):
    wrong = llama.held(*EXPECTED)
    for states, branches, part in zip(wrong, llama.branches, llama.parts, strict=True):
        states[1] += part - branches[4]
    found = compare_states(wrong, llama.ladders, EXPECTED)
    assert found.fault is Fault.PARTIAL_SUM
    assert 0.35 < found.slots[1].explanation.missing < 0.65


def test_a_final_norm_too_much_or_too_little_is_named(bench):
    wrong = bench.held(*EXPECTED)
    for states, ladder in zip(wrong, bench.ladders, strict=True):
        states[2] = ladder.normed()[5]
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.NORM_APPLIED
    assert "slot 2 (rung 5) holds rung 5 after the final norm" in found.what
    found = compare_states(bench.held(*AUX, 8), bench.ladders, EXPECTED)
    assert found.fault is Fault.NORM_MISSING


def test_states_of_the_document_before_are_stale(bench):
    states = bench.held(*EXPECTED)
    wrong = [states[0]]
    for now, before in zip(states[1:], states[:-1], strict=True):
        length = min(now.shape[1], before.shape[1])
        wrong.append(torch.cat([before[:, :length], now[:, length:]], dim=1))
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.STALE


def test_rows_that_repeat_are_stale(bench):
    wrong = [states[:, torch.arange(states.shape[1]) // 2] for states in bench.held(*EXPECTED)]
    assert compare_states(wrong, bench.ladders, EXPECTED).fault is Fault.STALE
    zero = [torch.zeros_like(states) for states in wrong]
    assert compare_states(zero, bench.ladders, EXPECTED).fault is Fault.STALE


def test_a_fault_of_a_few_tokens_is_found_and_named(bench):
    """Five of about forty tokens: no median sees them."""
    wrong = bench.held(*EXPECTED)
    for states, healthy in zip(wrong, bench.rungs, strict=True):
        states[0, -5:] = healthy[3, -5:]
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.LAYER_SHIFT
    assert found.slots[0].best == 2
    assert 0.05 < found.slots[0].wrong_tokens < 0.2


def test_noise_and_no_numbers_are_not_taken_for_a_pattern(bench):
    wrong = bench.held(*EXPECTED)
    random = torch.Generator().manual_seed(0)
    for states in wrong:
        states[0] += states[0].norm(dim=-1, keepdim=True) * torch.randn(states[0].shape, generator=random)
    found = compare_states(wrong, bench.ladders, EXPECTED)
    assert found.fault is Fault.UNKNOWN
    wrong[2][3, 7, 1] = torch.nan
    wrong[0][0] = bench.rungs[0][2]
    assert not compare_states(wrong, bench.ladders, EXPECTED).same
    healthy = bench.held(*EXPECTED)
    healthy[2][:, 7:, 1] = torch.nan
    found = compare_states(healthy, bench.ladders, EXPECTED)
    assert found.fault is Fault.NOT_FINITE
    json.dumps(found.to_dict(), allow_nan=False)


def test_layers_that_cannot_be_told_apart_are_undecided(llama):
    """A layer that adds next to nothing: its input and its output are the same to within the noise."""
    near = []
    for ladder in llama.ladders:
        rungs = ladder.rungs.clone()
        rungs[5] = rungs[4] * 1.001
        near.append(dataclasses.replace(ladder, rungs=rungs))
    found = compare_states([ladder.rungs[list(EXPECTED)] for ladder in near], near, EXPECTED)
    assert found.fault is Fault.UNDECIDED
    assert "cannot be told apart" in found.what


def test_attention_sinks_do_not_hide_a_shift(llama):
    """The first token and one more are a thousand times as long in every layer, as in real models: over the
    whole tensor a wrong layer is then less than 1 % away."""
    sinks = torch.tensor([0, 11])
    spike = torch.zeros(llama.target.hidden_size)
    spike[3] = 1000 * float(llama.ladders[0].rungs[4].norm(dim=-1).median())
    ladders, wrong = [], []
    for ladder, rungs in zip(llama.ladders, llama.rungs, strict=True):
        exact, rounded = ladder.rungs.clone(), rungs.clone()
        exact[1:9, sinks] += spike
        rounded[1:9, sinks] += spike
        ladders.append(dataclasses.replace(ladder, rungs=exact))
        wrong.append(rounded[[3, 5, 6, FINAL]])
    whole = (wrong[0][0] - ladders[0].rungs[2]).norm() / ladders[0].rungs[2].norm()
    assert whole < 0.01
    assert compare_states(wrong, ladders, EXPECTED).fault is Fault.LAYER_SHIFT


def test_rows_of_a_long_document_are_picked_in_runs_from_end_to_end():
    rows = pick_rows(5000)
    assert len(rows) == ROWS
    assert (rows[0], rows[-1]) == (0, 4999)
    assert int((rows.diff() == 1).sum()) == ROWS - ROWS // 8
    assert pick_rows(17).tolist() == list(range(17))
    assert len(pick_rows(131).unique()) == len(pick_rows(131))


def test_a_ladder_of_picked_rows_is_that_of_all_rows(llama):
    """Of a document longer than what is picked, the picked rows are the document's own."""
    long = request(9, 125)
    short = dataclasses.replace(long, tokens=long.tokens[:40], mask=long.mask[:40], rows=long.rows[:40])
    whole = build_ladders(llama.target, [long], device="cpu", branches=())[0]
    part = build_ladders(llama.target, [short], device="cpu", branches=())[0]
    torch.testing.assert_close(whole.rungs[:, :40], part.rungs, rtol=1e-4, atol=1e-4)
