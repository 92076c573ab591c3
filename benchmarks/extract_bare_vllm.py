"""For extract_throughput.py, in vLLM's interpreter: the same prefill without capture."""

import json
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")

from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

if __name__ == "__main__":
    connection, settings = Connection(int(sys.argv[1])), json.loads(sys.argv[2])
    engine = LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["longest"] + 1,
        enforce_eager=current_platform.is_cpu(),
        disable_log_stats=True,
        enable_prefix_caching=False,
    )
    connection.send_bytes(b'{"ready": true}')
    once = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    while True:
        try:
            documents = json.loads(Path(connection.recv_bytes().decode()).read_text())
        except EOFError:
            break
        engine.generate([{"prompt_token_ids": tokens} for tokens in documents], once, use_tqdm=False)
        connection.send_bytes(b"{}")
