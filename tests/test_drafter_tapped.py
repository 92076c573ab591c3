"""Steps of an engine put together to texts: rejected drafts leave nothing, stages are told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shakedown.drafter.tapped import Stage, Step, assemble, install_plugin, read_steps
from shakedown.errors import DataProblem


def step(request: str, start: int, tokens: list[int], mark: float) -> Step:
    """`mark` tells in its states which step they are of."""
    return Step(
        request=request,
        tokens=torch.tensor(tokens),
        positions=torch.arange(start, start + len(tokens)),
        aux=torch.full((3, len(tokens), 2), mark) + torch.arange(len(tokens))[None, :, None] / 10,
    )


def test_a_token_has_the_states_of_the_step_that_kept_it():
    steps = [
        step("r", 0, [1, 2, 3], 1.0),  # the prompt; 4 comes of it
        step("r", 3, [4, 90, 91], 2.0),  # both drafts are rejected, 5 comes of it
        step("r", 4, [5, 6, 92], 3.0),  # one is accepted, 7 comes of it
        step("other", 0, [9, 9, 9], 9.0),
        step("r", 6, [7, 93, 94], 4.0),
    ]
    found, missing = assemble(steps, [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 6, 6, 6]])
    assert missing is None
    assert found is not None
    assert found.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.aux[0, :, 0].tolist() == pytest.approx([1.0, 1.1, 1.2, 2.0, 3.0, 3.1, 4.0])
    stages = found.stages(prompt=3)
    assert stages[Stage.PREFILL].tolist() == [True] * 3 + [False] * 4
    assert stages[Stage.VERIFY].tolist() == [False] * 3 + [True] * 4
    assert not stages[Stage.CHUNKED].any()
    assert not stages[Stage.DECODE].any()


def test_a_prompt_in_pieces_is_chunked_and_a_step_of_one_token_is_plain_decode():
    steps = [step("r", 0, [1, 2], 1.0), step("r", 2, [3, 4], 2.0), step("r", 4, [5], 3.0)]
    (found,) = assemble(steps, [[1, 2, 3, 4, 5, 6]])
    assert found is not None
    stages = found.stages(prompt=4)
    assert stages[Stage.CHUNKED].tolist() == [True] * 4 + [False]
    assert stages[Stage.DECODE].tolist() == [False] * 4 + [True]


def test_a_cached_beginning_has_the_states_of_the_requests_that_computed_it():
    """As a prefix cache gives it: of `b` the first two tokens, of `c` four, two of them computed by `b`."""
    steps = [
        step("a", 0, [1, 2, 3], 1.0),
        step("b", 2, [5, 6, 7], 2.0),
        step("c", 4, [8, 9], 3.0),
        step("d", 4, [8, 1], 4.0),  # its beginning was computed before anything was written down
    ]
    texts = [[1, 2, 5, 6, 8, 9, 0], [1, 2, 5, 6, 7, 0], [1, 2, 3, 0], [9, 9, 9, 9, 8, 1, 0]]
    c, b, a, d = assemble(steps, texts)
    assert a is not None
    assert b is not None
    assert c is not None
    assert d is None
    assert c.tokens.tolist() == [1, 2, 5, 6, 8, 9]
    assert c.aux[0, :, 0].tolist() == pytest.approx([1.0, 1.1, 2.0, 2.1, 3.0, 3.1])
    assert b.aux[0, :, 0].tolist() == pytest.approx([1.0, 1.1, 2.0, 2.1, 2.2])
    stages = c.stages(prompt=6)
    assert stages[Stage.CHUNKED].all()
    assert a.stages(prompt=3)[Stage.PREFILL].all()


def test_steps_are_read_in_the_order_in_which_they_were_taken(tmp_path):
    for number, names in ((10, ["b"]), (2, ["a", "b"])):
        counts = [2] * len(names)
        held = {"names": names, "counts": counts, "tokens": torch.arange(sum(counts))}
        held |= {"positions": torch.arange(sum(counts)), "aux": torch.zeros(3, sum(counts), 2)}
        torch.save(held, tmp_path / f"step-{number:06d}-77.pt")
    assert [(each.request, each.tokens.tolist()) for each in read_steps(tmp_path)] == [
        ("a", [0, 1]),
        ("b", [2, 3]),
        ("b", [0, 1]),
    ]
    (tmp_path / "step-000011-77.pt").write_bytes(b"torn")
    with pytest.raises(DataProblem, match="cannot be read as a step"):
        list(read_steps(tmp_path))


@pytest.mark.parametrize(
    ("engine", "group", "allowed"),
    [("vllm", "vllm.general_plugins", "VLLM_PLUGINS"), ("sglang", "sglang.srt.plugins", "SGLANG_PLUGINS")],
)
def test_the_plug_in_is_found_as_plug_ins_are_and_keeps_what_was_set(tmp_path, engine, group, allowed):
    given = {"PYTHONPATH": "/elsewhere", allowed: "theirs"}
    env = install_plugin(tmp_path, given, tmp_path / "steps", engine)
    assert env["PYTHONPATH"] == f"{tmp_path}:/elsewhere"
    assert env[allowed] == "theirs,shakedown_tap"
    assert allowed not in install_plugin(made(tmp_path / "other"), {}, tmp_path, engine)
    code = (
        "from importlib.metadata import entry_points\n"
        f"print([each.value for each in entry_points(group='{group}')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['shakedown_tap:register']"


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


RUNNERS = {
    "distributed": "def get_tensor_model_parallel_rank(): return 0",
    "v1.worker.gpu_model_runner": """
class GPUModelRunner:
    def propose_draft_token_ids(self, scheduler_output, sampled_token_ids, aux_hidden_states=None):
        return "drafts"
""",
    "v1.worker.gpu.model_runner": """
class GPUModelRunner:
    def sample_tokens(self, grammar_output):
        state, self.execute_model_state = self.execute_model_state, None
        return state
""",
}
# Two requests, the second one's prompt in a step with a round of the first; rows beyond are padding.
STEP = """
import importlib.metadata, numpy, torch
from types import SimpleNamespace as S
for found in importlib.metadata.entry_points(group="vllm.general_plugins"):
    found.load()()
from vllm.v1.worker.gpu_model_runner import GPUModelRunner as V1
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as V2
aux = [torch.arange(8.0)[:, None] + 100 * slot for slot in range(3)]
ids, positions = torch.tensor([7, 8, 1, 2, 3, 0, 0, 0]), torch.tensor([4, 5, 0, 1, 2, 0, 0, 0])
v1 = V1()
v1.input_batch, v1.input_ids, v1.positions = S(req_ids=["a", "b"]), S(gpu=ids), positions
step = S(total_num_scheduled_tokens=5, num_scheduled_tokens={"b": 3, "a": 2})
assert v1.propose_draft_token_ids(step, None, aux_hidden_states=aux) == "drafts"
v2 = V2()
for names in (["a", "b"], ["_warmup_0_", "_warmup_1_"]):
    batch = S(req_ids=names, num_scheduled_tokens=numpy.array([2, 3]), input_ids=ids, positions=positions)
    v2.execute_model_state = state = S(input_batch=batch, aux_hidden_states=aux)
    assert v2.sample_tokens(None) is state
assert v2.sample_tokens(None) is None
"""


def test_both_of_vllms_runners_are_tapped_alike(tmp_path):
    for name, code in RUNNERS.items():
        file = tmp_path.joinpath("vllm", *name.split(".")).with_suffix(".py")
        for folder in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / "__init__.py").touch()
        file.write_text(code)
    steps = made(tmp_path / "steps")
    env = install_plugin(made(tmp_path / "plugin"), {"PYTHONPATH": str(tmp_path)}, steps, "vllm")
    subprocess.run([sys.executable, "-c", STEP], env={**os.environ, **env}, check=True)
    seen = list(read_steps(steps))
    assert [each.request for each in seen] == ["a", "b"] * 2
    for runner in (seen[:2], seen[2:]):
        assert [each.tokens.tolist() for each in runner] == [[7, 8], [1, 2, 3]]
        assert [each.positions.tolist() for each in runner] == [[4, 5], [0, 1, 2]]
        assert runner[1].aux[1, :, 0].tolist() == [102, 103, 104]
