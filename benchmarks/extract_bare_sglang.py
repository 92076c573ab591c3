"""For extract_throughput.py, in SGLang's interpreter: the same prefill without capture."""

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

ON_HOST = not torch.cuda.is_available()
if ON_HOST:
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1")

import sglang  # noqa: E402  (it reads the variables)

if __name__ == "__main__":
    connection, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    host = {"device": "cpu", "attention_backend": "torch_native", "mem_fraction_static": 0.2}
    engine = sglang.Engine(
        model_path=settings["model"],
        dtype=settings["dtype"],
        context_length=settings["context"],
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        disable_radix_cache=True,
        chunked_prefill_size=-1,
        log_level="warning",
        **(host if ON_HOST else {}),
    )
    connection.send_bytes(b'{"ready": true}')
    once = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    while True:
        try:
            documents = json.loads(Path(connection.recv_bytes().decode()).read_text())
        except EOFError:
            break
        engine.generate(input_ids=documents, sampling_params=once)
        connection.send_bytes(b"{}")
    engine.shutdown()
