"""Products with a trained matrix, whose gradient is summed in fp32 by the product that finds it.

It never leaves the matrix's gradient to autograd: seven steps share each matrix, and autograd would round the
sum to bf16 after each of them, and read and write the whole matrix once more to add it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`weight` [out, in] in the dtype of the arithmetic, not differentiated; `sums`: where gradients go, for
    some of its rows each; `owners`: the parameters that these belong to."""

    weight: Tensor
    sums: tuple[Tensor, ...]
    owners: tuple[Tensor, ...]

    @classmethod
    def of(cls, *owners: Tensor, dtype: torch.dtype, columns: slice = slice(None)) -> Matrix:
        """These parameters, one under the other, or the same columns of each."""
        with torch.no_grad():
            parts = [owner.detach()[:, columns].to(dtype) for owner in owners]
            weight = (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()
        trained = torch.is_grad_enabled() and all(owner.requires_grad for owner in owners)
        sums = tuple(_gradient(owner)[:, columns] for owner in owners) if trained else ()
        return cls(weight=weight, sums=sums, owners=owners if trained else ())

    def times(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """x [n, in] -> [n, out], added to `plus`."""
        product: Tensor = _Product.apply(x, plus, self, *self.owners)  # type: ignore[no-untyped-call]
        return product


def _gradient(owner: Tensor) -> Tensor:
    if owner.grad is None:
        owner.grad = torch.zeros_like(owner)
    return owner.grad


class _Product(torch.autograd.Function):
    """The owners are inputs only so that autograd asks for this product's backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plus: Tensor | None, matrix: Matrix, *owners: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.matrix = matrix
        return x @ matrix.weight.T if plus is None else torch.addmm(plus, x, matrix.weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        matrix, gradient = ctx.matrix, gradients[0]
        begin = 0
        for part in matrix.sums:
            add_product(part, gradient[:, begin : begin + len(part)], x)
            begin += len(part)
        grad_x = gradient @ matrix.weight if ctx.needs_input_grad[0] else None
        return grad_x, gradient if ctx.needs_input_grad[1] else None, None, *(None for _ in matrix.owners)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total [a, b] += left [n, a] transposed times right [n, b], rounded only as a sum where it can be."""
    if left.dtype is total.dtype:
        total.addmm_(left.T, right)
    elif left.is_cuda:
        torch.addmm(total, left.T, right, out_dtype=total.dtype, out=total)
    else:
        total += left.T @ right
