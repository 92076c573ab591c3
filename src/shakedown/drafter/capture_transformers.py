"""The reference backend: the target's own layers in transformers, whole in memory or a layer at a time.

It never keeps more of a batch than the states that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch
import transformers

from shakedown.drafter.capture import Request, batches
from shakedown.drafter.decoder import Decoder
from shakedown.drafter.manifest import Backend
from shakedown.drafter.saying import Say, seldom
from shakedown.drafter.shards import Document
from shakedown.drafter.target import Target
from shakedown.errors import EnvironmentProblem

BATCHES_A_WINDOW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A batch whose states are under way to the host: `ready` is when they have arrived."""

    batch: Sequence[Request]
    aux: torch.Tensor  # [sum of T, 3·H]
    last: torch.Tensor  # [sum of R, H]
    ready: torch.cuda.Event | None


class TransformersCapture:
    """`batch_tokens` are computed at once; `stream_tokens` is None for a target that is held whole, else how
    many tokens are taken through the layers together, each layer being read from disk for them once more."""

    def __init__(
        self,
        target: Target,
        *,
        device: str,
        dtype: torch.dtype = torch.bfloat16,
        batch_tokens: int = 8192,
        stream_tokens: int | None = None,
        say: Say = lambda text: None,
    ) -> None:
        self.target = target
        self.backend = Backend(name="transformers", version=transformers.__version__)
        self.window_tokens = stream_tokens or BATCHES_A_WINDOW * batch_tokens
        self.first_tokens = stream_tokens or 2 * batch_tokens
        self._device = torch.device(device)
        self._dtype = dtype
        self._batch_tokens = batch_tokens
        self._streamed = stream_tokens is not None
        self._say = seldom(say)
        self._stack = ExitStack()
        self._decoder: Decoder | None = None
        self._seen: dict[int, torch.Tensor] = {}

    def __enter__(self) -> TransformersCapture:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            self._decoder = Decoder(self.target, self._dtype, self._device)
            if not self._streamed:
                stack.enter_context(self._decoder.loaded(range(self.target.layers)))
                self._seen = stack.enter_context(self._decoder.watched(self.target.aux_inputs_of))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._decoder, self._seen = None, {}

    def capture(self, requests: Sequence[Request]) -> Iterator[Document]:
        flights = self._flights_by_layer if self._streamed else self._flights
        waiting: Flight | None = None
        for flight in flights(list(batches(requests, self._batch_tokens))):
            if waiting is not None:  # the device computes the next batch while this one is taken apart
                yield from landed(waiting)
            waiting = flight
        if waiting is not None:
            yield from landed(waiting)

    def prefill(self, batch: Sequence[Request]) -> torch.Tensor:
        """A batch through all layers, states [B, T, H] before the final norm: what capture costs no less."""
        assert self._decoder is not None
        try:
            return self._decoder.forward(self._decoder.embed(self._sent(padded(batch))))
        except torch.OutOfMemoryError as problem:
            tokens = len(batch) * batch[0].length
            raise EnvironmentProblem(
                f"{self._device} has no memory for {tokens:,} tokens at once ({batch[0].place}): {problem}",
                f"compute less at once: --batch-tokens {tokens // 2}",
            ) from None

    def _flights(self, groups: Sequence[Sequence[Request]]) -> Iterator[Flight]:
        for batch in groups:
            states = self.prefill(batch)
            yield self._launch(batch, [self._seen[layer] for layer in self.target.aux_inputs_of], states)

    def _flights_by_layer(self, groups: Sequence[Sequence[Request]]) -> Iterator[Flight]:
        decoder = self._decoder
        assert decoder is not None
        states = [decoder.embed(self._sent(padded(batch))).cpu() for batch in groups]
        aux: list[list[torch.Tensor]] = [[] for _ in groups]
        for layer in range(self.target.layers):
            self._say(f"layer {layer + 1} of {self.target.layers}, {len(groups)} batches")
            with decoder.loaded([layer]):
                for number, before in enumerate(states):
                    if layer in self.target.aux_inputs_of:
                        aux[number].append(before)
                    states[number] = decoder.forward(self._sent(before)).cpu()
        for batch, layers, after in zip(groups, aux, states, strict=True):
            yield self._launch(batch, layers, self._sent(after))

    def _launch(self, batch: Sequence[Request], aux: Sequence[torch.Tensor], states: torch.Tensor) -> Flight:
        """Gathers the rows that are wanted and starts their copy to the host."""
        assert self._decoder is not None
        width = states.shape[1]
        real = self._sent(torch.cat([torch.arange(r.length) + i * width for i, r in enumerate(batch)]))
        wanted = self._sent(torch.cat([request.rows + i * width for i, request in enumerate(batch)]))
        rows = torch.cat([self._sent(layer).flatten(0, 1)[real] for layer in aux], dim=-1)
        last = self._decoder.norm(states.flatten(0, 1)[wanted])
        kept = (rows.bfloat16(), last.bfloat16())
        if self._device.type != "cuda":
            return Flight(batch=batch, aux=kept[0], last=kept[1], ready=None)
        host = [torch.empty(found.shape, dtype=found.dtype, pin_memory=True) for found in kept]
        for target, found in zip(host, kept, strict=True):
            target.copy_(found, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return Flight(batch=batch, aux=host[0], last=host[1], ready=ready)

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device, without waiting for what it computes: pageable memory would make the host wait."""
        if self._device.type != "cuda" or tensor.is_cuda:
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


def padded(batch: Sequence[Request]) -> torch.Tensor:
    """Token ids int64 [B, longest]; what stands after a document's end is never looked at."""
    tokens = [request.tokens.long() for request in batch]
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)


def landed(flight: Flight) -> Iterator[Document]:
    """The documents of a batch, once its states have arrived."""
    if flight.ready is not None:
        flight.ready.synchronize()
    lengths = [request.length for request in flight.batch]
    rows = [len(request.rows) for request in flight.batch]
    cuts = zip(flight.batch, torch.split(flight.aux, lengths), torch.split(flight.last, rows), strict=True)
    for request, aux, last in cuts:
        yield Document(
            tokens=request.tokens,
            mask=request.mask,
            aux=aux,
            last=last,
            last_rows=request.rows,
            sample=request.sample,
        )
