"""The target's decoder as transformers computes it, its weights read by us: all at once or a layer at a time.

It never samples and holds no head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModel

from shakedown.drafter.target import Target
from shakedown.errors import UsageError

FAMILIES = {"kimi_k2": "deepseek_v3"}  # published under another name, computed alike


class Decoder:
    """Runs token ids, or states, through layers of the target.

    The module is built without weights; `load` fills some layers of it, and `forward` runs those. What
    transformers does around its layers (masks, positions) is transformers' own, whichever are loaded.
    """

    def __init__(self, target: Target, dtype: torch.dtype, device: torch.device | str) -> None:
        self.target = target
        self.dtype = dtype
        self.device = torch.device(device)
        config = transformers_config(target)
        with torch.device("meta"):
            self._model: Any = AutoModel.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
        self._model.eval()
        self._layers: Sequence[nn.Module] = list(self._model.layers)
        self._layer_types = getattr(config, "layer_types", None)
        self._norm: nn.Module = self._model.norm
        # A router in half precision would choose other experts; transformers lists what must stay whole.
        self._whole: Sequence[str] = tuple(getattr(self._model, "_keep_in_fp32_modules_strict", None) or ())
        # Its frequencies are no weights of the checkpoint: made anew where they are needed.
        with self.device:
            self._model.rotary_emb = type(self._model.rotary_emb)(self._model.config)
        self._embed: torch.Tensor | None = None
        place(self._norm, {"weight": self._tensor(target.layout.final_norm)}, "the final norm")

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[B, T, H] of token ids [B, T]."""
        if self._embed is None:
            self._embed = self._tensor(self.target.layout.embedding)
        return nn.functional.embedding(tokens.to(self.device), self._embed)

    def norm(self, states: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self._norm(states)
        return normed

    @contextmanager
    def loaded(self, layers: Iterable[int]) -> Iterator[None]:
        """These layers, in their order, are what `forward` runs; their memory is free again afterwards."""
        numbers = list(layers)
        try:
            for number in numbers:
                self._load(number)
            self._model.layers = nn.ModuleList([self._layers[number] for number in numbers])
            self._model.config.num_hidden_layers = len(numbers)
            if self._layer_types is not None:  # a model of mixed layers looks its masks up by place
                self._model.config.layer_types = [self._layer_types[number] for number in numbers]
            self._model.norm = nn.Identity()
            yield
        finally:
            for number in numbers:
                self._layers[number].to("meta")

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[B, T, H] after the loaded layers, before any norm. Documents are padded at their end, which no
        earlier token can see: no mask is needed, and none is made."""
        done = self._model(inputs_embeds=states, use_cache=False)
        after: torch.Tensor = done.last_hidden_state
        return after

    @contextmanager
    def watched(self, layers: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
        """While open, each forward leaves the inputs of these layers in the mapping."""
        seen: dict[int, torch.Tensor] = {}

        def keep(number: int, _: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            seen[number] = args[0] if args else kwargs["hidden_states"]

        with ExitStack() as hooks:
            for number in layers:
                hook = partial(keep, number)
                handle = self._layers[number].register_forward_pre_hook(hook, with_kwargs=True)
                hooks.callback(handle.remove)
            yield seen

    @contextmanager
    def branch(self, layer: int) -> Iterator[list[torch.Tensor]]:
        """While open, each forward appends what the layer's MLP adds to the residual stream."""
        added: list[torch.Tensor] = []
        mlp: Any = self._layers[layer].mlp
        handle = mlp.register_forward_hook(lambda _, args, out: added.append(out))
        try:
            yield added
        finally:
            handle.remove()

    def _load(self, number: int) -> None:
        layer = self._layers[number]
        stem = self.target.layout.layer(number)
        place(layer, dict(self._layer_tensors(stem, layer.state_dict())), stem)

    def _layer_tensors(self, stem: str, wanted: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in wanted:
            dtype = torch.float32 if any(part in name for part in self._whole) else self.dtype
            if name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"):
                yield name, self._experts(f"{stem}mlp.experts.", name.endswith("gate_up_proj"))
            elif name.endswith(".weight"):
                module = stem + name.removesuffix(".weight")
                yield name, self.target.weights.weight(module, dtype, self.device)
            else:
                yield name, self.target.weights.tensor(stem + name, self.device).to(dtype)

    def _experts(self, stem: str, gate_up: bool) -> torch.Tensor:
        """[E, out, in]: transformers keeps the experts of a layer in one tensor, gate above up. Filled one by
        one: 384 experts of Kimi-K2 are 34 GB, which must not lie there twice."""
        names = ("gate_proj", "up_proj") if gate_up else ("down_proj",)
        rows, columns = self.target.weights.plain_shape(f"{stem}0.{names[0]}")
        shape = (self.target.layout.experts, len(names) * rows, columns)
        experts = torch.empty(shape, dtype=self.dtype, device=self.device)
        for expert, held in enumerate(experts):
            for name, part in zip(names, torch.split(held, rows), strict=True):
                part.copy_(self.target.weights.weight(f"{stem}{expert}.{name}", self.dtype, self.device))
        return experts

    def _tensor(self, name: str) -> torch.Tensor:
        return self.target.weights.tensor(name, self.device).to(self.dtype)


def transformers_config(target: Target) -> Any:
    """The decoder's config. Raises UsageError for a family that the installed transformers does not know."""
    text = {key: value for key, value in target.text_config.items() if key != "quantization_config"}
    family = FAMILIES.get(str(text.get("model_type")), str(text.get("model_type")))
    if family not in CONFIG_MAPPING:
        raise UsageError(
            f"{target.path}: the installed transformers does not know the model type {family!r}",
            "install a newer transformers, or capture with --backend vllm or sglang",
        )
    return CONFIG_MAPPING[family].from_dict({**text, "model_type": family})


def place(module: nn.Module, tensors: Mapping[str, torch.Tensor], what: str) -> None:
    """Puts tensors in the place of a module's own. Raises UsageError where they are not its own."""
    try:
        module.load_state_dict(dict(tensors), strict=True, assign=True)
    except RuntimeError as problem:
        raise UsageError(f"the target's layout is unknown: {what} does not fit: {problem}") from None
    module.requires_grad_(False)
