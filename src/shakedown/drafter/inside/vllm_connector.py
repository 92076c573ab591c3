"""Runs in vLLM's interpreter: its connector for hidden states, for machines without a CUDA device.

The one that vLLM brings wants pinned memory and CUDA events; nothing else of it is changed.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as stock


class Arrived:
    """Stands for an event of a copy that was made at once."""

    def query(self) -> bool:
        return True


class HostStatesConnector(stock.ExampleHiddenStatesConnector):  # type: ignore[misc]
    def _submit_async_write(self, pending: Any) -> None:
        offsets = torch.arange(self._block_size)
        blocks = torch.tensor(pending.block_ids)
        slots = (blocks[:, None] * self._block_size + offsets).flatten()
        states = stock.extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids.clone()}
        save_file(tensors, pending.filename)
        held = self._lock_fds.pop(pending.req_id, None)
        if held is not None:
            os.close(held)
        self._req_copy_events[pending.req_id] = Arrived()
