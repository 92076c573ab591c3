"""Turns SmolLM2's GGUF into the safetensors folder that engines load.

Run by vLLM's interpreter, never imported.

usage: dequantise_smollm2.py MODEL.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

source, folder = Path(sys.argv[1]), sys.argv[2]
model = AutoModelForCausalLM.from_pretrained(
    str(source.parent),
    gguf_file=source.name,
    dtype=torch.bfloat16,
    quantization_config=GgufConfig(dequantize=True),
)
tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
# The GGUF's own marks are gone once the weights are plain; left in, engines look for a quantised loader.
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
