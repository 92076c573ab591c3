"""Attention as this launch would compute it, on tiny tensors, against plain matrix products in fp64.

Prefill of 40 tokens and decode of one token over 40, with fewer key than query heads.
"""

import math

import torch

device = PARAMS.get("device", "cpu")
backend = PARAMS.get("attention", "").lower()
HEADS, KEY_HEADS, WIDTH, LENGTH = 8, 2, 64, 40
dtype = torch.bfloat16
torch.manual_seed(0)
queries = torch.randn(LENGTH, HEADS, WIDTH, device=device, dtype=dtype)
keys, values = (torch.randn(LENGTH, KEY_HEADS, WIDTH, device=device, dtype=dtype) for _ in range(2))


def plain(query):
    """Causal attention of the last rows, in fp64 on the CPU."""
    q, k, v = (each.double().cpu() for each in (query, keys, values))
    k, v = (each.repeat_interleave(HEADS // KEY_HEADS, dim=1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(WIDTH)
    rows = torch.arange(LENGTH - len(q), LENGTH)[:, None]
    scores = scores.masked_fill(torch.arange(LENGTH)[None] > rows, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def sdpa(query):
    """What torch_native and CPU backends call."""
    q, k, v = (each.transpose(0, 1)[None] for each in (query, keys, values))
    mask = (
        torch.arange(LENGTH, device=device)[None]
        <= torch.arange(LENGTH - len(query), LENGTH, device=device)[:, None]
    )
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def flash(query):
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    ends = [torch.tensor([0, n], device=device, dtype=torch.int32) for n in (len(query), LENGTH)]
    return flash_attn_varlen_func(
        query, keys, values, max_seqlen_q=len(query), cu_seqlens_q=ends[0], max_seqlen_k=LENGTH,
        cu_seqlens_k=ends[1], causal=True, fa_version=get_flash_attn_version(),
    )  # fmt: skip


def fa3(query):
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    ends = [torch.tensor([0, n], device=device, dtype=torch.int32) for n in (len(query), LENGTH)]
    return flash_attn_varlen_func(
        query, keys, values, cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], max_seqlen_q=len(query),
        max_seqlen_k=LENGTH, causal=True,
    )  # fmt: skip


def flashinfer(query):
    import flashinfer

    if len(query) == 1:
        return flashinfer.single_decode_with_kv_cache(query[0], keys, values)[None]
    return flashinfer.single_prefill_with_kv_cache(query, keys, values, causal=True)


def triton_prefill(query):
    if PARAMS.get("engine") == "vllm":
        from vllm.v1.attention.ops.triton_prefill_attention import context_attention_fwd
    else:
        from sglang.srt.layers.attention.triton_ops.prefill_attention import context_attention_fwd

    out = torch.empty_like(query)
    start, length = (torch.tensor([n], device=device, dtype=torch.int32) for n in (0, len(query)))
    context_attention_fwd(query, keys[-len(query) :], values[-len(query) :], out, start, length, len(query))
    return out


ways = {"flash_attn": flash, "fa3": fa3, "flashinfer": flashinfer}
ways |= {"triton": triton_prefill, "triton_attn": triton_prefill}
chosen = ways.get(backend, sdpa) if device == "cuda" else sdpa
for name, query in (("prefill", queries), ("decode", queries[-1:])):
    if chosen is triton_prefill and name == "decode":
        continue  # its decode kernel needs the engine's paged cache
    got = chosen(query).double().cpu()
    off = ((got - plain(query)).norm() / plain(query).norm()).item()
    print(f"{chosen.__name__} {name}: {off:.2e} from fp64", flush=True)
    if not off < 2e-2:
        raise RungFailed(f"attention ({chosen.__name__}, {name}) on {device} is off by {off:.2e}")
passed("attention", chosen.__name__)
