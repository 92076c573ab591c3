"""Runs in SGLang 0.5.14 in place of its CUDA kernels: EAGLE-3 on a CPU, one draft after another.

Called before the scheduler is made. What it replaces computes the same, in plain torch; a tree is not known.
"""

import copy
import sys

import torch


def install() -> None:
    from sglang.srt.managers import overlap_utils
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.speculative import draft_utils, eagle_utils, eagle_worker_v2  # noqa: F401
    from sglang.srt.speculative.triton_ops import cache_locs
    from sglang.srt.speculative.triton_ops import eagle as eagle_ops

    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_, **__: None
    torch.Tensor.record_stream = lambda *_: None
    MHATokenToKVPool._init_kv_copy_and_warmup = lambda self: None  # moves the rows of a tree
    eagle_utils.sgl_build_tree_kernel_efficient = build_chain
    for old, new in (
        (cache_locs.assign_extend_cache_locs_func, slots_of),
        (cache_locs.assign_req_to_token_pool_func, keep_slots),
        (cache_locs.assign_draft_cache_locs_contiguous, Launched(draft_slots)),
        (eagle_ops.fill_bonus_tokens, Launched(fill_bonus)),
        (eagle_utils.verify_tree_greedy_func, verify_chain),
        (overlap_utils.gather_spec_extras, gather),
    ):
        replace_everywhere(old, new)
    install_attention(draft_utils.DraftBackendFactory)


def replace_everywhere(old: object, new: object) -> None:
    """Also where a module took it from another one."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang."):
            for name in [name for name, value in vars(module).items() if value is old]:
                setattr(module, name, new)


class Launched:
    """Called as a Triton kernel is: with its grid in brackets first."""

    def __init__(self, function):
        self.function = function

    def __getitem__(self, grid):
        return self.function


def slots_of(req_pool_indices, req_to_token, start_offset, end_offset, batch_size, draft_token_num, device):
    spans = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    return torch.cat([req_to_token[row, begin:end] for row, begin, end in spans]).to(torch.int64)


def keep_slots(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, batch_size):
    at = 0
    spans = zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True)
    for row, begin, end in spans:
        req_to_token[row, begin:end] = out_cache_loc[at : at + end - begin].to(req_to_token.dtype)
        at += end - begin


def draft_slots(req_pool_indices, req_to_token, seq_lens, out, pool_len, topk, steps):
    for n, (row, begin) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        out[n * steps : (n + 1) * steps] = req_to_token[row, begin : begin + steps]


def fill_bonus(accept_tokens, accept_lens, bonus, stride):
    last = accept_lens.long()[:, None] - 1
    bonus.copy_(accept_tokens.view(-1, stride).gather(1, last)[:, 0])


def gather(indices, topk_p, topk_index, tokens, hidden):
    return topk_p[indices], topk_index[indices], tokens[indices], None if hidden is None else hidden[indices]


def build_chain(
    _parents, _index, seq_lens, _mask, positions, rows, following, _sibling, _topk, _steps, n, _mode
):
    at = torch.arange(n)
    positions[: len(seq_lens) * n] = (seq_lens[:, None] + at).flatten()
    rows.copy_(torch.arange(len(seq_lens) * n).view(-1, n))
    following.copy_(torch.where(at < n - 1, at + 1, -1).expand(len(seq_lens), n))


def verify_chain(predicts, accept_index, accept_token_num, candidates, target_predict, **_):
    n = candidates.shape[1]
    right = (candidates[:, 1:] == target_predict[:, :-1]).int().cumprod(dim=1).sum(dim=1)
    for row, accepted in enumerate(right.tolist()):
        kept = slice(row * n, row * n + accepted + 1)
        predicts[kept] = target_predict[row, : accepted + 1].int()
        accept_index[row, : accepted + 1] = torch.arange(kept.start, kept.stop)
        accept_token_num[row] = accepted
    return predicts, accept_index, accept_token_num


def install_attention(factory) -> None:
    """Torch's own, told how long each request is within a verification and after each draft."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend as Native

    plain = Native.forward_extend

    def forward_extend(self, q, k, v, layer, batch, *rest, **named):
        if batch.forward_mode.is_target_verify():
            drafts = batch.spec_info.draft_token_num
            batch, before = copy.copy(batch), batch.seq_lens
            batch.extend_prefix_lens, batch.extend_seq_lens = before, torch.full_like(before, drafts)
            batch.seq_lens = before + drafts
        return plain(self, q, k, v, layer, batch, *rest, **named)

    class Later(Native):
        def __init__(self, runner, by):
            super().__init__(runner)
            self.by = by

        def forward_decode(self, q, k, v, layer, batch, *rest, **named):
            batch = copy.copy(batch)
            batch.seq_lens = batch.seq_lens + self.by
            return super().forward_decode(q, k, v, layer, batch, *rest, **named)

    class Chain:
        def __init__(self, runner, steps):
            self.attn_backends = [Later(runner, step + 1) for step in range(steps)]

        def init_forward_metadata(self, batch):
            for each in self.attn_backends:
                each.init_forward_metadata(batch)

    Native.forward_extend = forward_extend
    factory.create_decode_backend = lambda self: Chain(self.draft_model_runner, self.speculative_num_steps)
    factory.create_draft_extend_backend = lambda self: Native(self.draft_model_runner)
