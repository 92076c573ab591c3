"""What the benchmarks for GPU hosts plant, tried where there is no GPU."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu_isolate
import gpu_isolate_rows
import gpu_plants
from fault_rows import filled

from shakedown.core import FlagTable, Launch
from shakedown.engines import engine_named, parse
from shakedown.isolate.factors import factors_of
from shakedown.isolate.values import values_of
from shakedown.jobs.reading import shipped_table

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = {"python": "python3", "model": "/m", "head": "/h", "port": "18100", "caches": "/c"}


@pytest.fixture
def llama(tmp_path):
    """A tiny Llama with 6 heads in 3 groups."""
    config = transformers.LlamaConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=3, vocab_size=100, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def logits(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model(torch.tensor([[1, 2, 3, 4]])).logits, model.config


def test_a_model_with_more_heads_answers_alike_and_two_ranks_can_share_it(llama, tmp_path):
    plain, _ = logits(llama)
    same, config = logits(gpu_plants.more_heads(llama, tmp_path / "more"))
    assert (config.num_attention_heads, config.num_key_value_heads) == (8, 4)
    assert torch.equal(plain, same)


def test_a_hollow_model_takes_no_room_and_has_the_shapes_its_config_says(llama, tmp_path):
    folder = gpu_plants.hollow_model(llama, tmp_path / "hollow")
    file = folder / "model.safetensors"
    assert file.stat().st_size > 50e9
    assert file.stat().st_blocks * 512 < 1 << 20
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    wanted = {name: list(weight.shape) for name, weight in model.named_parameters()}
    assert {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"} == wanted


def test_a_narrow_drafter_differs_in_its_fc_alone(tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "head").mkdir()
    tensors = {"fc.weight": torch.randn(4, 12), "norm.weight": torch.randn(4)}
    save_file(tensors, tmp_path / "head" / "model.safetensors", metadata={"format": "pt"})
    got = load_file(gpu_plants.narrow_fc(tmp_path / "head", tmp_path / "narrow") / "model.safetensors")
    assert got["fc.weight"].shape == (4, 8)
    assert torch.equal(got["norm.weight"], tensors["norm.weight"])


SERVER = """
import os, torch
from sglang.srt.server_args import ServerArgs
from sglang.srt.distributed.parallel_state import GroupCoordinator
args = ServerArgs()
args._handle_missing_default_values()
free, whole = torch.accelerator.get_memory_info(0)
print(args.attention_backend, args.grammar_backend, whole >> 30, free < whole, os.environ["NCCL_NVLS_ENABLE"])
group = GroupCoordinator()
print(group.all_reduce(7))
"""
PACKAGES = {
    "torch/__init__.py": "from types import SimpleNamespace as S\n"
    "cuda = S(memory_reserved=lambda device: 5, mem_get_info=None)\naccelerator = S(get_memory_info=None)\n",
    "sglang/srt/server_args.py": "class ServerArgs:\n"
    "    device = attention_backend = sampling_backend = grammar_backend = cuda_graph_max_bs_decode = None\n"
    "    def _handle_missing_default_values(self): self.device = 'cuda'\n",
    "sglang/srt/distributed/parallel_state.py": "class GroupCoordinator:\n"
    "    world_size, rank_in_group = 2, 1\n    def all_reduce(self, it): return it\n",
}


@pytest.mark.parametrize("env", [{}, {"NCCL_P2P_DISABLE": "1"}])
def test_the_host_is_prepared_in_every_process_and_a_rank_stays_away(tmp_path, env):
    host = gpu_plants.write_host(tmp_path / "host", gpu_plants.WITHOUT_P2P, slice_gib=3)
    for name, text in PACKAGES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PYTHON"))}
    path = {"PYTHONPATH": f"{host}:{tmp_path / 'site'}", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], env={**kept, **env, **path}, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "triton none 3 True 0\n"
        if env:
            with pytest.raises(subprocess.TimeoutExpired):
                server.wait(1.0)
            server.kill()
        else:
            assert server.stdout.read() == "7\n"


def on_gpu(engine: str) -> FlagTable:
    table = shipped_table(engine_named(engine))
    assert table is not None
    return table


@pytest.mark.parametrize("row", gpu_isolate_rows.ROWS, ids=lambda row: row.id)
def test_what_a_row_plants_is_a_factor_of_its_launch(row):
    argv = tuple(filled(word, NAMES) for word in row.command)
    env = {**gpu_isolate_rows.VARIABLES[row.engine], **row.env}
    table = on_gpu(row.engine)
    command = parse(Launch(argv=argv, env=env, cwd=Path("/")), table, engine=engine_named(row.engine))
    factors = factors_of(command, table)
    named = [[it.name for it in factors if it.name.startswith(each)] for each in row.truth]
    assert [len(names) for names in named] == [1] * len(row.truth)
    assert 6 <= len(factors) <= 20
    assert bool(row.truth) != bool(row.rung)
    if "--mem-fraction-static" in row.truth:  # no other value is tried: a launch less
        assert not values_of(factors, command, table).get(named[0][0])


def test_rows_of_one_gpu_share_the_only_one(monkeypatch):
    given = argparse.Namespace(only=None, cpu=False, sglang=Path(sys.executable), vllm=Path("/none"))
    for count, gpus in ((1, {"0"}), (2, {"0", "1", "0,1"})):
        monkeypatch.setattr(gpu_isolate, "gpu_count", lambda count=count: count)
        rows = gpu_isolate.chosen(given)
        assert {row.gpus for row in rows} == gpus
        assert {row.engine for row in rows} == {"sglang"}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seconds", [150.0, 18.0])
def test_a_search_is_a_row_whether_it_came_to_its_end_or_not(llama, tmp_path, monkeypatch, seconds):
    given = argparse.Namespace(model=llama, head=llama, sglang=Path(sys.executable), vllm=Path("/"), cpu=True)
    server = Path(__file__).parent / "bad_servers" / "stand_in.py"
    row = gpu_isolate_rows.Row(
        id="stand-in",
        kind="flag",
        engine="stand-in",
        truth=("--alpha",),
        command=("{python}", str(server), "--model", "m", "--port", "{port}", "--alpha", "--beta", "3"),
        env={"STAND_IN_FAULT": "crash:--alpha"},
    )
    monkeypatch.setitem(gpu_isolate_rows.VARIABLES, "stand-in", {})  # type: ignore[arg-type]
    monkeypatch.setattr(gpu_isolate, "READING_S", 0.0 if seconds > 100 else 16.0)
    found = gpu_isolate.Search(row, 3, tmp_path, given).run(time.monotonic() + seconds)
    assert found["launch_s"] or seconds < 100
    if seconds > 100:
        assert (found["named"], found["exact"], found["proven"], found["cut"]) == (
            ["--alpha"],
            True,
            True,
            "",
        )
        assert len(found["launch_s"]) == found["launches"]
        assert found["launch_s"][0]["purpose"] == "reproduce"
    else:
        assert not found["proven"]
        assert found["cut"].startswith("cut after ")
    gpu_isolate.show({"stand-in": found})
