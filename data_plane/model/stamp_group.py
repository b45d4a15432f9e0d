"""One cache group of the stamp model: writes rows through its block table, and reads and checks them back."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from control_plane.messages.columns import Int32s
from data_plane.model.base import GroupLayout
from data_plane.model.stamp_rows import (
    CHAIN,
    Chain,
    Words,
    group_origin,
    mixed,
    places,
    position_weights,
    positions_of,
)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class StampFault(RuntimeError):
    """A row is not what, or not where, it should be. The message names slot, group and position."""


class Fed(Struct, frozen=True):
    """A batch as runs of rows: run i feeds `lengths[i]` of `tokens` at the positions from `begins[i]` on.

    The results of `lost` runs go nowhere, so what they read is not checked.
    """

    slots: Int32s
    begins: Int32s
    lengths: Int32s
    tokens: Int32s
    lost: Bools


class _Reading(Struct, frozen=True):
    """Readable blocks, one run's after another's: `starts` and `lasts` are each run's first and last of them.

    `columns` says where in the table a block stands. `places` and `digests` are [blocks, granularity]; `after_begin`
    and `before_end` [runs, granularity] say which rows of a run's first and last block may be read.
    """

    blocks: Int32s
    columns: Ints
    starts: Ints
    lasts: Ints
    after_begin: Bools
    before_end: Bools
    places: Words
    digests: Words


def _all_before(queries: Ints) -> Ints:
    """Full history: everything from position 0 on."""
    return np.zeros_like(queries)


class StampGroup:
    """A view of the group's blocks as rows: uint64 [blocks, granularity, (place, digest)]."""

    # For each kind of group: the first position that a query at each of these positions may read. Up to itself it
    # may read everything.
    KINDS: ClassVar[dict[str, Callable[[Ints], Ints]]] = {"full": _all_before}

    def __init__(self, index: int, layout: GroupLayout, blocks: Any, table: Any, chain: Chain, *, strict: bool) -> None:
        self._name = layout.id
        self._granularity = layout.block_granularity
        self._rows: Words = blocks.view(np.uint64).reshape(len(blocks), layout.block_granularity, 2)
        self._table: Int32s = table
        self._chain = chain
        self._origin = np.uint64(group_origin(index))
        self._first_readable = self.KINDS[layout.kind]
        self._strict = strict
        self._weights = position_weights(table.shape[1] * self._granularity).reshape(-1, self._granularity)

    def write(self, fed: Fed) -> None:
        """Stamp every row that is fed. Raises StampFault rather than write into the null block."""
        ends = fed.begins + fed.lengths
        reach = self._table.shape[1] * self._granularity
        if int(ends.max()) > reach:
            slot = int(fed.slots[ends > reach][0])
            raise StampFault(f"slot {slot}, group {self._name!r}: position {int(ends.max()) - 1} of {reach}")
        slots = np.repeat(fed.slots, fed.lengths)
        offsets = np.arange(len(fed.tokens)) - np.repeat(np.cumsum(fed.lengths) - fed.lengths, fed.lengths)
        positions = np.repeat(fed.begins, fed.lengths) + offsets
        blocks = self._table[slots, positions // self._granularity]
        rows = positions % self._granularity
        if not blocks.all():
            at = int(np.argmin(blocks))
            raise StampFault(f"{self._at(slots[at], positions[at])}: nothing may be written into the null block")
        place = places(fed.tokens, positions)
        digests = self._chain.digests(place, self._previous_digests(fed), fed.lengths)
        if self._strict:
            self._check_clean(blocks, rows, place, digests, slots, positions, np.repeat(fed.lost, fed.lengths))
        self._rows[blocks, rows, 0] = place
        self._rows[blocks, rows, 1] = digests

    def read(self, fed: Fed) -> Words:
        """What the last query of each run sees: one word a run. Raises StampFault when strict and a row is wrong."""
        reading = self._gather(fed)
        if self._strict:
            self._check_chain(reading, fed)
        terms = reading.digests * self._weights[reading.columns]
        terms[reading.starts] *= reading.after_begin
        terms[reading.lasts] *= reading.before_end
        return np.add.reduceat(terms.sum(axis=1, dtype=np.uint64), reading.starts, dtype=np.uint64)

    def _gather(self, fed: Fed) -> _Reading:
        """All rows that the last query of each run may read, through the block table."""
        granularity = self._granularity
        ends = (fed.begins + fed.lengths).astype(np.int64)
        firsts = self._first_readable(ends - 1)
        begin_blocks, end_blocks = firsts // granularity, -(-ends // granularity)
        wide = np.arange(int(end_blocks.max()))
        readable = (wide >= begin_blocks[:, None]) & (wide < end_blocks[:, None])
        blocks = self._table[fed.slots, : len(wide)][readable]
        rows = self._rows.take(blocks, axis=0)
        lasts = np.cumsum(end_blocks - begin_blocks) - 1
        within = np.arange(granularity)
        return _Reading(
            blocks=blocks,
            columns=np.broadcast_to(wide, readable.shape)[readable],
            starts=lasts - (end_blocks - begin_blocks) + 1,
            lasts=lasts,
            after_begin=within >= (firsts - begin_blocks * granularity)[:, None],
            before_end=within < (ends - (end_blocks - 1) * granularity)[:, None],
            places=rows[..., 0],
            digests=rows[..., 1],
        )

    def _previous_digests(self, fed: Fed) -> Words:
        """The digest before each run's first row, read through the table."""
        before = np.maximum(fed.begins - 1, 0)
        blocks = self._table[fed.slots, before // self._granularity]
        return np.where(fed.begins > 0, self._rows[blocks, before % self._granularity, 1], self._origin)

    def _check_clean(
        self, blocks: Any, rows: Any, place: Words, digests: Words, slots: Any, positions: Any, lost: Bools
    ) -> None:
        """A row is written once after its block was zeroed; writing the same again does no harm."""
        old_place, old_digests = self._rows[blocks, rows, 0], self._rows[blocks, rows, 1]
        dirty = ((old_place != 0) | (old_digests != 0)) & ((old_place != place) | (old_digests != digests)) & ~lost
        if dirty.any():
            at = int(np.argmax(dirty))
            raise StampFault(
                f"{self._at(slots[at], positions[at])}: block {blocks[at]} is not clean where position "
                f"{positions[at]} is written, it holds {_found(old_place[at])}: not zeroed, or another's"
            )

    def _check_chain(self, reading: _Reading, fed: Fed) -> None:
        """Every block begins at its own position, and every readable row continues the row before it."""
        digests, starts = reading.digests, reading.starts
        previous = np.empty(digests.shape, dtype=np.uint64)
        previous[:, 1:] = digests[:, :-1]
        previous[1:, 0] = digests[:-1, -1]
        previous[starts, 0] = self._origin
        previous *= np.uint64(CHAIN)
        previous += mixed(reading.places)
        wrong = previous != digests
        # A run that may not be read from position 0 on has no row before its first block to continue from.
        wrong[starts, 0] &= reading.columns[starts] == 0
        wrong[:, 0] |= positions_of(reading.places[:, 0]) != (reading.columns * self._granularity).astype(np.uint64)
        wrong[starts] &= reading.after_begin
        wrong[reading.lasts] &= reading.before_end
        if wrong.any():
            wrong &= ~np.repeat(fed.lost, reading.lasts - starts + 1)[:, None]
        if wrong.any():
            raise StampFault(self._chain_fault(reading, fed, wrong))

    def _chain_fault(self, reading: _Reading, fed: Fed, wrong: Bools) -> str:
        """The first wrong row in words."""
        at = int(np.argmax(wrong.any(axis=1)))
        row = int(np.argmax(wrong[at]))
        run = int(np.searchsorted(reading.starts, at, side="right")) - 1
        position = int(reading.columns[at]) * self._granularity + row
        where, block = self._at(fed.slots[run], position), int(reading.blocks[at])
        if not block:
            return f"{where}: expected a row, found a hole"
        origin = f"that continues position {position - 1}" if position else "that begins the sequence"
        found = _found(reading.places[at, row])
        return f"{where}: expected the row {origin}, found {found} in block {block}: stale, zeroed, or another's"

    def _at(self, slot: Any, position: Any) -> str:
        return f"slot {int(slot)}, group {self._name!r}, position {int(position)}"


def _found(place: np.uint64) -> str:
    return f"token {int(place) & 0xFFFFFFFF} of position {int(place) >> 32}"
