"""Real engines and a real model for the demo and the tests, installed once per user.

It never touches an interpreter that is not its own.
"""

from shakedown.provision.environments import SGLANG, VLLM, EngineSpec, prepare_engine
from shakedown.provision.model import prepare_model

__all__ = ["SGLANG", "VLLM", "EngineSpec", "prepare_engine", "prepare_model"]
