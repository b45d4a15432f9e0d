"""Scaled dot product attention over gathered keys, with the little that differs between devices."""

import torch
import torch.nn.functional as F
from msgspec import Struct

# A bucket's keys and values should stay in the CPU's cache between the gather and the product; a GPU wants few
# and large calls instead.
CPU_GATHER_BYTES = 4 << 20
CUDA_GATHER_BYTES = 256 << 20


class LayerRule(Struct, frozen=True):
    """What one layer asks of attention. `window` 0 sees the whole history, else that many last tokens."""

    scale: float
    window: int = 0
    softcap: float = 0.0


def gather_bytes(device: torch.device) -> int:
    """How many bytes of keys and values one call should gather on `device`."""
    return CPU_GATHER_BYTES if device.type == "cpu" else CUDA_GATHER_BYTES


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rule: LayerRule,
    *,
    mask: torch.Tensor | None,
    causal: bool = False,
) -> torch.Tensor:
    """Attention of `query` [rows, heads, queries, dim] over `key`, `value` [rows, kv_heads, keys, dim].

    `mask` is bool and broadcasts to [rows, heads, queries, keys]; true may be seen. `causal` asks for the lower
    triangle instead, with as many queries as keys. Returns [rows, heads, queries, dim].
    """
    group = query.shape[1] // key.shape[1]
    if rule.softcap:
        return _attend_softcapped(query, _repeat(key, group), _repeat(value, group), rule, mask=mask, causal=causal)
    grouped = group > 1
    if grouped and mask is not None and query.is_cuda:
        # With a mask, CUDA's fused kernels want as many key heads as query heads; without, they can group.
        key, value, grouped = _repeat(key, group), _repeat(value, group), False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=rule.scale, enable_gqa=grouped
    )


def _attend_softcapped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rule: LayerRule,
    *,
    mask: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    """The same with scores squeezed into (-softcap, softcap), which no fused kernel does."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * rule.scale
    scores = torch.tanh(scores / rule.softcap) * rule.softcap
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.matmul(scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype), value)


def _repeat(heads: torch.Tensor, times: int) -> torch.Tensor:
    """Each key head `times` times over, to match the query heads that share it."""
    return heads if times == 1 else heads.repeat_interleave(times, dim=1)
