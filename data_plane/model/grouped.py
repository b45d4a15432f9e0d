"""What a decoder whose layers keep their history in several cache groups says of itself, and asks of a round."""

from collections.abc import Sequence
from typing import Protocol

import torch
from msgspec import Struct

from data_plane.attention.kernels import LayerRule
from data_plane.recurrence.geometry import StatePart
from data_plane.recurrence.paged import Step


class AttentionGroup(Struct, frozen=True):
    """Attention layers that share a group, all with `kv_heads` heads of `head_dim`. See `GroupLayout` for the kinds."""

    id: str
    kind: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    window: int = 0
    replayable: bool = False


class DecoderFacts(Struct, frozen=True):
    """Plain facts about a decoder. `states` are what one row of each recurrent layer keeps, by layer."""

    vocab_size: int
    max_context_tokens: int
    stop_token_ids: tuple[int, ...]
    weights_bytes: int
    dtype: torch.dtype
    attention: tuple[AttentionGroup, ...]
    states: dict[int, tuple[StatePart, ...]] = {}


class LayerCalls(Protocol):
    """What a layer asks of the round it runs in. Tensors follow the round's packed tokens."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor:
        """Attention of `query` [tokens, heads, dim], keys and values [tokens, kv_heads, dim]; [tokens, heads, dim]."""
        ...

    def recur(self, layer: int, inputs: torch.Tensor, step: Step) -> torch.Tensor:
        """Run `step` along each row from its own state: [tokens, width] to [tokens, width]."""
        ...


class GroupedDecoder(Protocol):
    """Layers without memory of their own: what they must remember goes through `LayerCalls`."""

    @property
    def facts(self) -> DecoderFacts:
        """What it is."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        ...

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, calls: LayerCalls
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`; all arguments int64, [tokens] but for `keep`."""
        ...

    def window_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> Sequence[tuple[int, torch.Tensor, torch.Tensor]]:
        """Layer, keys and values [tokens, kv_heads, dim] of its replayable groups, from tokens and positions alone."""
        ...
