"""Functions that are fused by torch.compile where their tensors lie on a GPU, and run as written on a CPU.

It never changes what a function computes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def fused_on_gpu(function: Callable[P, R]) -> Callable[P, R]:
    """The first argument, a tensor, tells where."""

    @cache
    def fused() -> Callable[P, R]:  # asking for the compiler alone loads it, which takes seconds
        return torch.compile(function)

    @wraps(function)
    def choose(*args: P.args, **kwargs: P.kwargs) -> R:
        first = cast(Tensor, args[0])
        return (fused() if first.is_cuda else function)(*args, **kwargs)

    return choose


def any_length(*tensors: Tensor) -> None:
    """Tells the compiler that the first dimension of these differs from call to call."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
