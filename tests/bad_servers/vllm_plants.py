"""A plug-in for vLLM that plants one fault of speculation, named by PLANTED, in the engine itself.

The drafter's directory stays right: wrong is what the engine captures, or what it makes of the drafter. All
but `late`, which keeps states in Python, are compiled like the code they replace; what vLLM has compiled
without them must not be read from its cache then.
"""

import os
from collections.abc import Callable
from functools import wraps

import torch


def register() -> None:
    plant = PLANTS.get(os.environ.get("PLANTED", ""))
    if plant is not None:
        plant()


def ids_shifted(by: int) -> Callable[[], None]:
    def plant() -> None:
        from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM
        from vllm.model_executor.models.llama import LlamaForCausalLM

        for target in (LlamaForCausalLM, DeepseekV2ForCausalLM):
            plain = target.set_aux_hidden_state_layers
            target.set_aux_hidden_state_layers = shifted(plain, by)

    return plant


def shifted(plain: Callable, by: int) -> Callable:
    return lambda self, layers: plain(self, tuple(k + by for k in layers))


def without_residual() -> None:
    from vllm.model_executor.models.llama import LlamaModel

    def add(self, aux, layer, hidden, residual):
        if layer in self.aux_hidden_state_layers:
            aux.append(hidden.clone())
        return aux

    LlamaModel._maybe_add_hidden_state = add


def changed_states(change: Callable) -> Callable[[], None]:
    """`change(model, aux)` on what the target's forward hands over."""

    def plant() -> None:
        from vllm.model_executor.models.llama import LlamaModel

        plain = LlamaModel.forward

        @wraps(plain)  # whose signature tells vLLM which dimensions vary
        def forward(self, *arguments, **named):
            found = plain(self, *arguments, **named)
            return (found[0], change(self, found[1])) if isinstance(found, tuple) else found

        LlamaModel.forward = forward

    return plant


def a_step_late(model: object, aux: list[torch.Tensor]) -> list[torch.Tensor]:
    """Decode reads the buffer before it is written: what it holds is the step before."""
    held = getattr(model, "held_back", None)
    model.held_back = [layer.clone() for layer in aux]  # type: ignore[attr-defined]
    if held is None or len(aux[0]) > 8:
        return aux
    last = [layer[-len(now) :] for layer, now in zip(held, aux, strict=True)]
    return [
        torch.cat([before, now[len(before) :]]) if len(before) < len(now) else before
        for before, now in zip(last, aux, strict=True)
    ]


def absolute_map() -> None:
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM as Head

    plain = Head.load_weights

    def load_weights(self, weights):
        found = plain(self, weights)
        offsets = self.draft_id_to_target_id
        offsets -= torch.arange(len(offsets), device=offsets.device)
        return found

    Head.load_weights = load_weights


def other_rope() -> None:
    from vllm.model_executor.models.llama_eagle3 import LlamaModel

    plain = LlamaModel.__init__

    def init(self, *, vllm_config, **named):
        config = vllm_config.speculative_config.draft_model_config.hf_config
        config.rope_parameters = {**config.rope_parameters, "rope_theta": 50.0}
        plain(self, vllm_config=vllm_config, **named)

    LlamaModel.__init__ = init


def other_embedding() -> None:
    """Tokens are taken for others, as by the embedding of another model."""
    from vllm.model_executor.models.llama_eagle3 import LlamaModel

    plain = LlamaModel.embed_input_ids
    LlamaModel.embed_input_ids = lambda self, ids: plain(self, (ids + 7) % self.vocab_size)


PLANTS: dict[str, Callable[[], None]] = {
    "ids+1": ids_shifted(1),
    "ids-1": ids_shifted(-1),
    "residual": without_residual,
    "norm": changed_states(lambda model, aux: [model.norm(layer) for layer in aux]),
    "permuted": changed_states(lambda model, aux: [*aux[1:], aux[0]]),
    "late": changed_states(a_step_late),
    "d2t": absolute_map,
    "rope": other_rope,
    "embedding": other_embedding,
}
