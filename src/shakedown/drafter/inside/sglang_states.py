"""Runs in SGLang's interpreter: prefills token ids, a hook of ours writing each request's states to a file.

It needs nothing of Shakedown. SGLang's own way to give states back turns every number into a Python object;
the hook takes them where they are.
"""

from __future__ import annotations

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

ON_HOST = not torch.cuda.is_available()
if ON_HOST:
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")

import sglang  # noqa: E402  (it reads the variables)

HOST_OPTIONS = {"device": "cpu", "attention_backend": "torch_native", "mem_fraction_static": 0.2}


def make_engine(settings: dict[str, Any]) -> Any:
    """SGLang's number k is the output of layer k."""
    hook = {
        "name": "states",
        "target_modules": ["logits_processor", "*.logits_processor"],
        "hook_factory": "sglang_hook:make_hook",
        "config": {"spool": settings["spool"]},
    }
    options = {
        "model_path": settings["model"],
        "dtype": settings["dtype"],
        "context_length": settings["context"],
        "skip_tokenizer_init": True,
        "disable_cuda_graph": True,  # hooks are not called within one, and one token a request needs none
        "log_level": "warning",
        **(HOST_OPTIONS if ON_HOST else {}),
        **settings["options"],
    }
    return sglang.Engine(
        **options,
        enable_return_aux_hidden_states=True,
        speculative_algorithm="EAGLE3",  # names the convention; no drafter is loaded
        return_aux_hidden_state_layer_ids=settings["layers"],
        disable_radix_cache=True,  # a prefix that is not computed leaves no states
        chunked_prefill_size=-1,
        forward_hooks=[hook],
    )


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    settings = json.loads(sys.argv[2])
    engine = make_engine(settings)
    connection.send_bytes(b'{"ready": true}')
    number = 0
    while True:
        try:
            documents = json.loads(Path(connection.recv_bytes().decode()).read_text())
        except EOFError:  # who asked is gone, or has all
            break
        names = [f"states-{number + i}" for i in range(len(documents))]
        number += len(documents)
        once = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}
        engine.generate(input_ids=documents, sampling_params=once, rid=names)
        files = [str(Path(settings["spool"]) / f"{name}.safetensors") for name in names]
        connection.send_bytes(json.dumps({"files": files}).encode())
    engine.shutdown()


if __name__ == "__main__":
    main()
