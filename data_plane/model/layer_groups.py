"""Which cache group each attention layer keeps its rows in."""

from collections.abc import Mapping

import torch
from msgspec import Struct

from data_plane.model.drivable import LayerFacts
from data_plane.model.grouped import AttentionGroup


class _Alike(Struct, frozen=True):
    """What layers of one group have in common. `window` 0 sees everything."""

    window: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype


def attention_groups(layers: Mapping[int, LayerFacts], *, max_context_tokens: int) -> tuple[AttentionGroup, ...]:
    """A group for the layers that see everything, and one for each window among the others; each shape apart.

    A window that no context exceeds sees everything. Full groups come first, then longer windows before shorter
    ones. The only group of its kind is called like it ("full", "sliding"); several are numbered ("sliding-1").
    """
    members: dict[_Alike, list[int]] = {}
    for layer, facts in layers.items():
        window = facts.rule.window if facts.rule.window < max_context_tokens else 0
        members.setdefault(_Alike(window, facts.kv_heads, facts.key_dim, facts.dtype), []).append(layer)
    ordered = sorted(members, key=lambda alike: (alike.window > 0, -alike.window))
    kinds = ["sliding" if alike.window else "full" for alike in ordered]
    return tuple(
        AttentionGroup(
            id=kind if kinds.count(kind) == 1 else f"{kind}-{kinds[:index].count(kind) + 1}",
            kind=kind,
            layers=tuple(members[alike]),
            kv_heads=alike.kv_heads,
            head_dim=alike.head_dim,
            dtype=alike.dtype,
            window=alike.window,
        )
        for index, (kind, alike) in enumerate(zip(kinds, ordered, strict=True))
    )
