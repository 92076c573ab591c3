"""One optimiser step: AdamW on fp32 masters, one flat gradient, clipped over all processes.

It never overlaps the exchange of gradients with the backward pass: a drafter's steps share their weights, so
no gradient is final before the very last of them, and bucketed overlap would have nothing to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn

from shakedown.drafter.recipe import Recipe


class Optimiser:
    """Owns the gradients: each parameter's is a view of one buffer, so that one call exchanges them all."""

    def __init__(self, drafter: nn.Module, recipe: Recipe) -> None:
        self._recipe = recipe
        self._named = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
        parameters = list(self._named.values())
        device = parameters[0].device
        self.gradient = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float32, device=device)
        begin = 0
        for parameter in parameters:
            parameter.grad = self.gradient[begin : begin + parameter.numel()].view_as(parameter)
            begin += parameter.numel()
        decayed = [p for p in parameters if p.ndim > 1]
        plain = [p for p in parameters if p.ndim <= 1]
        self._adam = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": recipe.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            fused=device.type == "cuda",
        )

    def step(self, number: int, total: int) -> Tensor:
        """Takes what the backward passes left, on all processes; hands back the norm before clipping."""
        if distributed.is_initialized():
            distributed.all_reduce(self.gradient)
        norm: Tensor = self.gradient.norm()
        self.gradient.mul_((self._recipe.clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self._adam.param_groups:
            group["lr"] = self._recipe.rate(number, total)
        self._adam.step()
        self.gradient.zero_()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Adam's two moments under the parameters' names."""
        found: dict[str, Tensor] = {}
        for name, parameter in self._named.items():
            moments = self._adam.state.get(parameter)
            if moments:
                found[f"{name}.first"] = moments["exp_avg"]
                found[f"{name}.second"] = moments["exp_avg_sq"]
        return found

    def restore(self, moments: Mapping[str, Tensor], steps_done: int) -> None:
        for name, parameter in self._named.items():
            kept: dict[str, Any] = {
                "step": torch.tensor(float(steps_done), device=self._step_device(parameter)),
                "exp_avg": moments[f"{name}.first"].to(parameter.device),
                "exp_avg_sq": moments[f"{name}.second"].to(parameter.device),
            }
            self._adam.state[parameter] = kept

    @staticmethod
    def _step_device(parameter: Tensor) -> torch.device:
        return (
            parameter.device if parameter.is_cuda else torch.device("cpu")
        )  # the fused one counts on the GPU
