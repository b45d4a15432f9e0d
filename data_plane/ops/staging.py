"""Buffers between the tiers: what leaves or enters blocks in order goes to the host later, or left it earlier."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from data_plane.streams.base import StreamEvent

BUFFER_COUNT = 4
ALIGNMENT_BYTES = 256


class StagingBuffer:
    """`array` holds `size_bytes`. `released` is a mark after its last use: nothing may fill it before that passed."""

    def __init__(self, index: int, *, array: Any = None, size_bytes: int = 0) -> None:
        self.index = index
        self.array = array
        self.size_bytes = size_bytes
        self.released: StreamEvent | None = None

    def segments(self, sizes: Sequence[int]) -> list[Any]:
        """Parts of so many bytes each, one behind the other."""
        ends = accumulate(map(_aligned, sizes), initial=0)
        return [self.array[begin : begin + size] for begin, size in zip(ends, sizes, strict=False)]


class StagingRing:
    """The buffers of one lane, one a plan, used in turn. Called on the forward thread, and never waits.

    A buffer that is too small is replaced by one of at least twice its size, and kept as it is: the device may still
    use it, and all that were outgrown are together smaller than their successor.
    """

    def __init__(self, make_array: Callable[[int], Any], *, count: int = BUFFER_COUNT) -> None:
        """`make_array(size_bytes)` gives memory that may hold anything; what it raises is raised by `next`."""
        self._make_array = make_array
        self._buffers = [StagingBuffer(index) for index in range(count)]
        self._outgrown: list[StagingBuffer] = []
        self._turn = 0

    def next(self, sizes: Sequence[int]) -> StagingBuffer:
        """The buffer that was used longest ago, with room for segments of so many bytes."""
        place = self._turn % len(self._buffers)
        buffer = self._buffers[place]
        size_bytes = sum(map(_aligned, sizes))
        if buffer.array is None or buffer.size_bytes < size_bytes:
            grown_bytes = 1 << (max(size_bytes, ALIGNMENT_BYTES) - 1).bit_length()
            grown = StagingBuffer(place, array=self._make_array(grown_bytes), size_bytes=grown_bytes)
            grown.released = buffer.released
            self._outgrown.append(buffer)
            self._buffers[place] = buffer = grown
        self._turn += 1
        return buffer


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
