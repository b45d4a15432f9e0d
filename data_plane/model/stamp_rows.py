"""What a stamped row holds, and the arithmetic on whole arrays of them.

A row says which token stands at which position, and a digest that continues the digest of the row before it. All
sums are modulo 2**64. One step of the chain is `digest = CHAIN * previous + mixed(row)`, so many steps can be summed
at once; a row that continues no other continues the group's origin. What the attention sees is the sum of all
readable digests, each times the weight of its position, so neither a row that is missing nor two that are exchanged
leave it as it was.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

# How to look at a block of rows by eye; the model reads the same bytes as pairs of words (place, digest). In a
# snapshot of state `position` is how many tokens it is after, and `token` a seal.
ROW = np.dtype([("token", "<u4"), ("position", "<u4"), ("digest", "<u8")])
ROW_BYTES = ROW.itemsize

CHAIN = 0x9E3779B97F4A7C15
PLACE = 0xD6E8FEB86659FD93
_UNCHAIN = pow(CHAIN, -1, 2**64)
_SHIFT = np.uint64(29)
_POSITION_SHIFT = np.uint64(32)


def scrambled(value: int) -> int:
    """A 64-bit number that looks like chance (the finalizer of SplitMix64)."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def group_origin(group: int) -> int:
    """The digest before the first row of a group, and a part of what each row adds: a row fits in its group only."""
    return scrambled(group + 1)


def places(tokens: npt.NDArray[Any], positions: npt.NDArray[Any]) -> Words:
    """Token and position in one word, as they stand in a row."""
    return tokens.astype(np.uint32).astype(np.uint64) | (positions.astype(np.uint64) << _POSITION_SHIFT)


def positions_of(place: Words) -> Words:
    """The position in each word of `places`."""
    return place >> _POSITION_SHIFT


def is_elsewhere(place: Words, other: Words) -> npt.NDArray[np.bool_]:
    """Where the positions in two arrays of `places` differ."""
    differ: npt.NDArray[np.bool_] = (place ^ other) >= np.uint64(1 << 32)
    return differ


def mixed(place: Words, origin: np.uint64) -> Words:
    """What each row adds to the chain of the group with this origin."""
    product = place + origin
    product *= np.uint64(PLACE)
    product ^= product >> _SHIFT
    return product


def powers(base: int, count: int) -> Words:
    """`base` to the power of 0 .. count-1."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    result: Words = np.multiply.accumulate(factors)
    return result


class Chain:
    """Digests of runs of rows, several runs at once."""

    def __init__(self, longest: int) -> None:
        """`longest` is the most rows that one run may have."""
        self._forward = powers(CHAIN, longest + 1)
        self._backward = powers(_UNCHAIN, longest + 1)

    def digests(self, added: Words, previous: Words, lengths: npt.NDArray[Any]) -> Words:
        """The digest of every row. `previous` and `lengths` have one entry a run, `added` what each row adds.

        After i steps from P the chain is at CHAIN**i * (P + sum of added[j] / CHAIN**j), so a running sum does.
        """
        if len(added) == len(lengths):
            return previous * np.uint64(CHAIN) + added
        starts = np.cumsum(lengths) - lengths
        steps = np.arange(1, len(added) + 1) - np.repeat(starts, lengths)
        sums = np.cumsum(added * self._backward[steps])
        before = np.concatenate([np.zeros(1, dtype=np.uint64), sums])[starts]
        digests: Words = self._forward[steps] * (sums + np.repeat(previous - before, lengths))
        return digests


def position_weights(count: int) -> Words:
    """The odd weight of each position: multiplying by it loses nothing."""
    return scrambled_array(np.arange(count, dtype=np.uint64)) | np.uint64(1)


def scrambled_array(values: Words) -> Words:
    """`scrambled` of each value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
