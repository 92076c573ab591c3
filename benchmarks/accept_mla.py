"""Are the states of latent attention (MLA) and experts seen rightly in a real engine, in prefill and decode?

    python benchmarks/accept_mla.py --engine vllm --gpu --python FILE --tokenizer FOLDER
                                    [--only NAME…] [--flag=FLAG…] [--port N] [--out FILE]

A random DeepSeek-V3 of eight layers, with the head sizes of the real one, for which engines have kernels,
and an EAGLE-3 head that has learnt nothing are written down, served together, and the states that the engine
hands its drafter are held against every layer of the reference. FOLDER lends a tokenizer. Right means: the
healthy engine's states are those of the reference in every stage, and the planted fault is named. A random
model would not pass as a server that answers rightly, so it is started here, not by `accept`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from accept_setups import SETUPS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import torch
import transformers
from accept_engines import LOG, Looked, look

from shakedown.drafter.architecture import Drafter, DrafterConfig
from shakedown.drafter.export import export_drafter
from shakedown.drafter.rotary import Rope
from shakedown.drafter.target import read_target
from shakedown.errors import ShakedownError
from shakedown.jobs.accept_questions import read_questions
from shakedown.jobs.draft_lint import shipped_surveys

RESULTS = Path(__file__).parent / "results" / "accept_mla.json"
ROWS = {"healthy": "", "ids+1": "ids+1"}  # by the fault that is planted
QUESTIONS, TOKENS, DRAFT_VOCABULARY = 16, 48, 1024
# A beginning from the cache was computed by another request: here each prompt is prefilled whole.
WHOLE_PROMPTS = {"vllm": "--no-enable-prefix-caching", "sglang": "--disable-radix-cache"}

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "initializer_range": 0.06,  # layers some 90 times as far apart as bfloat16's noise
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
# What transformers takes for granted, and engines do not.
PUBLISHED = {
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_router_dtype": "float32",
    "num_nextn_predict_layers": 0,
    "rope_theta": 10000.0,
}


def make_target(folder: Path, tokenizer: Path) -> None:
    torch.manual_seed(7)
    vocab = int(json.loads((tokenizer / "config.json").read_text())["vocab_size"])
    config = transformers.DeepseekV3Config(vocab_size=vocab, **SHAPE)
    model = transformers.DeepseekV3ForCausalLM(config)
    for layer in model.model.layers[SHAPE["first_k_dense_replace"] :]:
        # So close do a random router's scores lie that rounding would choose the experts: now it does not.
        bias = torch.randperm(SHAPE["n_routed_experts"]) / 2
        layer.mlp.gate.e_score_correction_bias.copy_(bias)
    model.to(torch.bfloat16).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, **PUBLISHED}, indent=1))
    for file in tokenizer.glob("*"):
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "vocab", "merges")):
            shutil.copy(file, folder)


def make_head(folder: Path, target_folder: Path) -> None:
    target = read_target(target_folder)
    torch.manual_seed(1)
    config = DrafterConfig(
        hidden=target.hidden_size,
        target_hidden=target.hidden_size,
        intermediate=512,
        heads=4,
        kv_heads=2,
        head_dim=64,
        vocab=target.vocab_size,
        draft_vocab=DRAFT_VOCABULARY,
        rms_eps=target.rms_eps,
        rope=Rope(theta=10000.0),
        max_positions=target.max_positions,
        aux_inputs_of=target.aux_inputs_of,
        target_layers=target.layers,
        target_architecture=target.architecture,
    )
    drafter = Drafter(config, target.embedding().float())
    d2t = torch.zeros(DRAFT_VOCABULARY, dtype=torch.int64)
    export_drafter(folder, config, drafter.state_dict(), d2t, engines=shipped_surveys())


def told_of(name: str, looked: Looked, seconds: float, log: Path) -> dict[str, Any]:
    faults = looked.faults
    right = set(faults.values()) == {"same"} if name == "healthy" else "layer_shift" in faults.values()
    return {
        "states": {stage: {"fault": found.fault.value, "what": found.what, "tokens": found.tokens}
                   for stage, found in looked.seen.parity.items()},
        "attention": attention_of(log),
        "right": right and {"prefill", "verification"} <= set(faults),
        "seconds": round(seconds, 1),
    }  # fmt: skip


def attention_of(log: Path) -> list[str]:
    """What the engine says of its choice of attention."""
    lines = log.read_text(errors="replace").splitlines()
    found = [line for line in lines if ("ttention" in line and "backend" in line) or "Model Runner" in line]
    return list(dict.fromkeys(line.partition("] ")[2] or line for line in found))[:6]


def run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    target, head = work / "target", work / "head"
    make_target(target, options.tokenizer)
    make_head(head, target)
    setup = SETUPS[options.engine, "gpu" if options.gpu else "cpu"]
    argv = [
        *setup.argv(options.python, target, options.port),
        WHOLE_PROMPTS[options.engine],
        *(options.flag or ()),
    ]
    rows = {}
    for name in options.only or ROWS:
        folder = work / name
        folder.mkdir()
        log = folder / LOG
        env = {**setup.env, **({setup.cache: str(folder / "cache")} if setup.cache else {})}
        env |= setup.plant(folder / "plant", ROWS[name]) if ROWS[name] else {}
        began_s = time.monotonic()
        questions = read_questions(None)[:QUESTIONS]
        try:
            looked = look(argv, target, head, questions, folder, env=env, tokens=TOKENS)
            rows[name] = told_of(name, looked, time.monotonic() - began_s, log)
        except ShakedownError as problem:
            rows[name] = {"right": False, "why": problem.message}
        print(f"{name}: {json.dumps(rows[name])}", flush=True)
        write(options, rows)
    return rows


def write(options: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Beside what other engines gave."""
    found = json.loads(options.out.read_text()) if options.out.is_file() else {}
    options.out.write_text(json.dumps({**found, options.engine: rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--engine", choices=sorted({engine for engine, _ in SETUPS}), default="vllm")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", nargs="+", choices=list(ROWS))
    parser.add_argument("--flag", action="append", metavar="FLAG", help="one more of the server's")
    parser.add_argument("--port", type=int, default=19100)
    for name in ("--python", "--tokenizer", "--out"):
        default = RESULTS if name == "--out" else None
        parser.add_argument(
            name, type=lambda text: Path(text).absolute(), required=default is None, default=default
        )
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory(prefix="accept-mla-") as work:
        rows = run(options, Path(work))
    sys.exit(0 if all(row["right"] for row in rows.values()) else 1)


if __name__ == "__main__":
    main()
