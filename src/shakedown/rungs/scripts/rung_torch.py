"""The interpreter starts, imports torch, and finds the device it is to run on."""

import torch

device = PARAMS.get("device", "cpu")
print("torch", torch.__version__, "CUDA", torch.version.cuda, flush=True)
if device == "cuda":
    if not torch.cuda.is_available():
        raise RungFailed("torch finds no CUDA device")
    print(torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0), flush=True)
passed("torch")
