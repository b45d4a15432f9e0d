"""How the states of all recurrent layers lie in one block."""

from itertools import accumulate
from math import prod

import torch
from msgspec import Struct

# Every state begins at a multiple of this, so that any dtype may follow any other.
ALIGN_BYTES = 16


class StatePart(Struct, frozen=True):
    """One state tensor of one row, for example the inputs that a convolution still sees."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes in a block, up to where the next part may begin."""
        return _aligned(self.elements * self.dtype.itemsize)


class StateGeometry(Struct, frozen=True):
    """`layers[i]` are the states of recurrent layer i, one after the other in a block of `block_bytes`."""

    layers: tuple[tuple[StatePart, ...], ...]
    block_bytes: int

    def views(self, blocks: torch.Tensor) -> list[list[torch.Tensor]]:
        """uint8 [blocks, block_bytes] as one [blocks, elements] for each part of each layer, sharing memory."""
        assert blocks.dtype == torch.uint8, f"an arena is bytes, not {blocks.dtype}"
        assert blocks.shape[1] == self.block_bytes, f"blocks of {blocks.shape[1]} bytes, not {self.block_bytes}"
        parts = [part for layer in self.layers for part in layer]
        begins = accumulate((part.size_bytes for part in parts), initial=0)
        flat = iter(
            [
                blocks[:, begin : begin + part.elements * part.dtype.itemsize].view(part.dtype)
                for begin, part in zip(begins, parts, strict=False)
            ]
        )
        return [[next(flat) for _ in layer] for layer in self.layers]


def state_geometry(layers: tuple[tuple[StatePart, ...], ...], *, beside_bytes: int) -> StateGeometry:
    """Blocks for these states that share parents well with blocks of `beside_bytes` (the attention layers').

    A parent is a whole number of blocks of every group. Two sizes picked at random would meet only at a huge one, so
    a snapshot is padded: up to a whole number of the other blocks, or if it is smaller, up to an even part of one.
    """
    size = sum(part.size_bytes for layer in layers for part in layer)
    assert size > 0, "a state group without states"
    if size >= beside_bytes:
        return StateGeometry(layers, -(-size // beside_bytes) * beside_bytes)
    packed = next(count for count in range(beside_bytes // size, 0, -1) if beside_bytes % (count * ALIGN_BYTES) == 0)
    return StateGeometry(layers, beside_bytes // packed)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
