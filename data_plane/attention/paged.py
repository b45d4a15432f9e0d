"""What one layer does in a round: write the fed tokens' keys and values, then attend through the block table."""

import torch

from data_plane.attention.geometry import KvGeometry
from data_plane.attention.kernels import LayerRule, attend
from data_plane.attention.round_plan import DecodeRead, ExtendRead, RoundPlan


class PagedAttention:
    """The arena of one cache group, and attention over it.

    `blocks` is uint8 [blocks, block_bytes] on the model's device. Gathered keys and values go through one scratch
    buffer that only grows: a fresh allocation for every layer and round would cost more than the gather.
    """

    def __init__(self, blocks: torch.Tensor, geometry: KvGeometry) -> None:
        self._geometry = geometry
        self._strips = geometry.strips(blocks)
        self._tokens = geometry.tokens(blocks)
        self._scratch = self._strips.new_empty((0, geometry.strip_elements))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        rule: LayerRule,
        plan: RoundPlan,
    ) -> torch.Tensor:
        """Attention of the round's packed tokens in one layer.

        `query` is [tokens, heads, dim], `key` and `value` [tokens, kv_heads, dim]; returns [tokens, heads, dim].
        The keys and values are in their blocks before anything is read, so a row may read what another row of
        the same round wrote.
        """
        self.write(layer, key, value, plan)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        reads = plan.reads(rule.window)
        for extend in reads.extends:
            span = slice(extend.begin, extend.end)
            if extend.strips is None:
                keys, values = _heads_first(key[span][None]), _heads_first(value[span][None])
            else:
                keys, values = self._gather(layer, extend.strips[:, None, :])
            _attend_extend(query[span], keys, values, output[span], rule, extend)
        for decode in reads.decodes:
            keys, values = self._gather(layer, decode.strips)
            _attend_decodes(query, keys, values, output, rule, decode)
        return output

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, plan: RoundPlan) -> None:
        """Put `key`, `value` [tokens, kv_heads, dim] of the round's packed tokens into their blocks."""
        granularity = self._geometry.block_granularity
        keys_row = plan.writes + layer * 2 * granularity
        shape = (-1, self._geometry.token_elements)
        self._tokens.index_copy_(0, keys_row, key.reshape(shape))
        self._tokens.index_copy_(0, keys_row + granularity, value.reshape(shape))

    def _gather(self, layer: int, strips: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [rows, kv_heads, blocks * block_granularity, dim] of layer-0 `strips` [2, rows, blocks]."""
        index = (strips + layer * 2).flatten()
        if len(index) > len(self._scratch):
            self._scratch = self._strips.new_empty((len(index), self._geometry.strip_elements))
        gathered = self._scratch[: len(index)]
        torch.index_select(self._strips, 0, index, out=gathered)
        keys, values = gathered.view(2, strips.shape[1], -1, self._geometry.kv_heads, self._geometry.head_dim)
        return _heads_first(keys), _heads_first(values)


def _heads_first(tokens: torch.Tensor) -> torch.Tensor:
    """[rows, tokens, heads, dim] as [rows, heads, tokens, dim]."""
    return tokens.transpose(1, 2)


def _attend_extend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    rule: LayerRule,
    read: ExtendRead,
) -> None:
    """Tile by tile over one row's queries [tokens, heads, dim]."""
    for tile in read.tiles:
        seen = slice(tile.first_key, tile.last_key)
        result = attend(
            _heads_first(query[tile.begin : tile.end][None]),
            keys[:, :, seen],
            values[:, :, seen],
            rule,
            mask=tile.mask,
            causal=tile.mask is None,
        )
        output[tile.begin : tile.end] = result[0].transpose(0, 1)


def _attend_decodes(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    rule: LayerRule,
    read: DecodeRead,
) -> None:
    """One query a row. The heads that share a key head stand as queries of it: no key is repeated."""
    rows, kv_heads, dim = keys.shape[0], keys.shape[1], keys.shape[3]
    chosen = query[read.tokens].view(rows, kv_heads, -1, dim)
    result = attend(chosen, keys, values, rule, mask=read.mask)
    output[read.tokens] = result.reshape(rows, -1, dim)
