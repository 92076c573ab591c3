"""vLLM itself over two nodes of this machine, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_nodes import two_nodes
from vllm_nodes import vllm_file

from shakedown.provision import VLLM, prepare_engine, prepare_model

pytestmark = pytest.mark.engine


def test_vllm_serves_over_two_nodes(shakedown, port: int, tmp_path: Path):
    python = prepare_engine(VLLM, print)
    model = prepare_model(python, print)
    with two_nodes() as nodes:
        file = tmp_path / "two.yaml"
        file.write_text(vllm_file(nodes, python, model, port))
        said = shakedown("run", "--launch", str(file), "--deadline", "6m")
    found = said.document
    assert found["verdict"] == "serves", (found["cause"], said.stderr)
    ranks = {span["rank"].partition(" ")[0] for span in found["phases"]}
    assert ranks == set(nodes.names)
    loaded = {span["rank"].partition(" ")[0] for span in found["phases"] if span["phase"] == "weight_load"}
    assert loaded == set(nodes.names)  # both hold weights: neither is only started
