"""Runs in vLLM's interpreter: prefills token ids and says in which file each request's states lie.

It needs nothing of Shakedown, and generates one token a request because vLLM will not prefill for nothing.
"""

from __future__ import annotations

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process: it ends when we do
os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")  # a sample of full length, and one token

from vllm import LLM, SamplingParams
from vllm.platforms import current_platform


def make_engine(settings: dict[str, Any]) -> LLM:
    """vLLM's number k is the input of layer k, and N what the last layer gives."""
    on_host = current_platform.is_cpu()
    connector = {
        "kv_connector": "HostStatesConnector" if on_host else "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": settings["spool"]},
    }
    if on_host:  # beside this file, which Python searches first
        connector["kv_connector_module_path"] = "vllm_connector"
    options = {
        "model": settings["model"],
        "dtype": settings["dtype"],
        "max_model_len": settings["longest"] + 1,
        "skip_tokenizer_init": True,  # tokens in, states out
        "enforce_eager": on_host,
        "disable_log_stats": True,
        **settings["options"],
    }
    hidden_states = {"eagle_aux_hidden_state_layer_ids": settings["layers"]}
    return LLM(
        **options,
        enable_prefix_caching=False,  # a prefix that is not computed leaves no states
        kv_transfer_config=connector,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": hidden_states},
        },
    )


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    engine = make_engine(settings)
    once = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    connection.send_bytes(b'{"ready": true}')

    def prefill(documents: list[list[int]]) -> list[str]:
        prompts = [{"prompt_token_ids": tokens} for tokens in documents]
        outputs = engine.generate(prompts, once, use_tqdm=False)
        return [output.kv_transfer_params["hidden_states_path"] for output in outputs]

    while True:
        try:
            documents = json.loads(Path(connection.recv_bytes().decode()).read_text())
        except EOFError:  # who asked is gone, or has all
            return
        paths = prefill(documents)
        prefill([documents[0][:1]])  # files of the last step are written when the engine steps once more
        connection.send_bytes(json.dumps({"files": paths}).encode())


if __name__ == "__main__":
    main()
