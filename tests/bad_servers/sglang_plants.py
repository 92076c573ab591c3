"""A plug-in for SGLang that plants one fault of speculation, named by PLANTED, in the engine itself.

The drafter's directory stays right: wrong is what the engine captures, or what it makes of the drafter. All
is in place before a model is loaded, so that CUDA graphs hold it, too.
"""

import multiprocessing
import os
from collections.abc import Callable

import torch


def register() -> None:
    plant = PLANTS.get(os.environ.get("PLANTED", ""))
    if plant is not None and multiprocessing.parent_process() is not None:  # a scheduler, not what started it
        plant()
        print(f"planted: {os.environ['PLANTED']}", flush=True)


def ids_shifted(by: int) -> Callable[[], None]:
    def plant() -> None:
        from sglang.srt.models.deepseek_v2 import DeepseekV2ForCausalLM
        from sglang.srt.models.llama import LlamaForCausalLM

        for target in (LlamaForCausalLM, DeepseekV2ForCausalLM):
            target.set_eagle3_layers_to_capture = shifted(target.set_eagle3_layers_to_capture, by)

    return plant


def shifted(plain: Callable, by: int) -> Callable:
    def set_layers(self, layer_ids=None):
        plain(self, layer_ids)
        self.model.layers_to_capture = [k + by for k in self.model.layers_to_capture]

    return set_layers


def without_residual() -> None:
    """The target's own loop over its layers, but for what it captures."""
    from sglang.srt.models.llama import LlamaModel

    def forward(self, input_ids, positions, forward_batch, input_embeds=None, pp_proxy_tensors=None):
        hidden = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        residual, aux = None, []
        for at, layer in enumerate(self.layers):
            if at in self.layers_to_capture:
                aux.append(hidden.clone())
            hidden, residual = layer(positions, hidden, forward_batch, residual)
        hidden, _ = self.norm(hidden, residual)
        return (hidden, aux) if aux else hidden

    LlamaModel.forward = forward


def changed_states(change: Callable) -> Callable[[], None]:
    """`change(model, aux)` on what the target's forward hands over."""

    def plant() -> None:
        from sglang.srt.models.llama import LlamaModel

        plain = LlamaModel.forward

        def forward(self, *arguments, **named):
            found = plain(self, *arguments, **named)
            return (found[0], change(self, found[1])) if isinstance(found, tuple) else found

        LlamaModel.forward = forward

    return plant


def a_step_late() -> None:
    """Verification reads the buffer before it is written: what it holds is the step before."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    plain = EAGLEWorkerV2.verify

    def verify(self, batch):
        found = plain(self, batch)
        now = found.logits_output.hidden_states
        held = getattr(self, "held_back", None)
        self.held_back = now.clone()
        if held is not None and held.shape == now.shape:
            found.logits_output.hidden_states = held
        return found

    EAGLEWorkerV2.verify = verify


def absolute_map() -> None:
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3 as Head

    plain = Head.load_weights

    def load_weights(self, weights):
        plain(self, weights)
        self.hot_token_id = self.hot_token_id - torch.arange(len(self.hot_token_id))

    Head.load_weights = load_weights


def other_rope() -> None:
    from sglang.srt.models.llama_eagle3 import LlamaModel

    plain = LlamaModel.__init__

    def init(self, config, *arguments, **named):
        if getattr(config, "rope_parameters", None) is not None:
            config.rope_parameters = {**config.rope_parameters, "rope_theta": 50.0}
        else:
            config.rope_theta = 50.0
        plain(self, config, *arguments, **named)

    LlamaModel.__init__ = init


def other_embedding() -> None:
    """Tokens are taken for others, as by the embedding of another model."""
    from sglang.srt.models.llama_eagle3 import LlamaModel

    plain = LlamaModel.forward

    def forward(self, input_ids, *arguments, **named):
        return plain(self, (input_ids + 7) % self.vocab_size, *arguments, **named)

    LlamaModel.forward = forward


PLANTS: dict[str, Callable[[], None]] = {
    "ids+1": ids_shifted(1),
    "ids-1": ids_shifted(-1),
    "residual": without_residual,
    "norm": changed_states(lambda model, aux: [model.norm(layer) for layer in aux]),
    "permuted": changed_states(lambda model, aux: [*aux[1:], aux[0]]),
    "late": a_step_late,
    "d2t": absolute_map,
    "rope": other_rope,
    "embedding": other_embedding,
}
