"""How the keys and values of all layers lie in one block."""

import torch
from msgspec import Struct


class KvGeometry(Struct, frozen=True):
    """The shape of a block: `[layers, 2, block_granularity, kv_heads, head_dim]`, keys before values.

    Seen as a matrix, an arena of such blocks has one row for each (block, layer, key or value): `strips`, which
    attention gathers whole. Seen finer, it has one row for each token of a strip: `tokens`, which a round writes.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_granularity: int
    dtype: torch.dtype

    @property
    def token_elements(self) -> int:
        """Numbers in one token's keys (or values) of one layer."""
        return self.kv_heads * self.head_dim

    @property
    def strip_elements(self) -> int:
        """Numbers in one block's keys (or values) of one layer."""
        return self.block_granularity * self.token_elements

    @property
    def block_bytes(self) -> int:
        """Size of a block."""
        return self.layers * 2 * self.strip_elements * self.dtype.itemsize

    def strips(self, blocks: torch.Tensor) -> torch.Tensor:
        """uint8 [blocks, block_bytes] as [blocks * layers * 2, strip_elements], sharing memory."""
        assert blocks.dtype == torch.uint8, f"an arena is bytes, not {blocks.dtype}"
        assert blocks.shape[1] == self.block_bytes, f"blocks of {blocks.shape[1]} bytes, not {self.block_bytes}"
        return blocks.view(self.dtype).view(-1, self.strip_elements)

    def tokens(self, blocks: torch.Tensor) -> torch.Tensor:
        """uint8 [blocks, block_bytes] as [blocks * layers * 2 * block_granularity, token_elements], sharing memory."""
        return self.strips(blocks).view(-1, self.token_elements)
