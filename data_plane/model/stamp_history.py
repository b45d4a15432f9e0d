"""A group of history in the stamp model: full, or a sliding window. A block holds a row for each of its tokens.

A row continues the digest of the row before it, if its query may read that one. In a replayable group, and in a
window of one token, a row depends on its own token and position alone.
"""

from typing import Any

import numpy as np
from msgspec import Struct

from control_plane.messages.columns import Int32s
from data_plane.model.base import GroupLayout
from data_plane.model.stamp_batch import Bools, Fed, Ints
from data_plane.model.stamp_group import StampFault, StampGroup
from data_plane.model.stamp_rows import CHAIN, Chain, Words, is_elsewhere, mixed, places, position_weights


class _Reading(Struct, frozen=True):
    """Readable blocks, one run's after another's: `starts` and `lasts` are each run's first and last of them.

    `columns` says where in the table a block stands, `firsts` the first readable position of each run. `places` and
    `digests` are [blocks, granularity]; `after_begin` and `before_end` [runs, granularity] say which rows of a run's
    first and last block may be read.
    """

    blocks: Int32s
    columns: Ints
    starts: Ints
    lasts: Ints
    firsts: Ints
    after_begin: Bools
    before_end: Bools
    places: Words
    digests: Words


class HistoryGroup(StampGroup):
    """A query at position q reads the rows of the `window` tokens that end with q; full history is the widest."""

    def __init__(self, index: int, layout: GroupLayout, blocks: Any, table: Any, chain: Chain, *, strict: bool) -> None:
        super().__init__(index, layout, blocks, table, chain, strict=strict)
        self._window = self._reach if layout.kind == "full" else layout.window
        self._is_chained = self._window > 1 and not layout.replayable
        # What every row continues that continues no other.
        self._base = np.uint64(int(self._origin) * CHAIN % 2**64)
        # A copy would not follow the edits of the table.
        self._cells = table.reshape(-1, copy=False)
        # Of every column of the table, by row: what stands in `places` beside the token, and what a digest counts.
        columns = (-1, self._granularity)
        self._places: Words = places(np.zeros(self._reach), np.arange(self._reach)).reshape(columns)
        self._weights = position_weights(self._reach).reshape(columns)
        self._within = np.arange(self._granularity)

    def write(self, fed: Fed) -> None:
        """Stamp every row that is fed."""
        self._check_reach(fed)
        columns = fed.positions // self._granularity
        rows = fed.positions - columns * self._granularity
        slots = fed.slots[fed.runs]
        blocks = self._table[slots, columns]
        self._check_not_null(blocks, slots, fed.positions)
        place = places(fed.tokens, fed.positions)
        digests = mixed(place, self._origin)
        if self._is_chained:
            digests = self._chain.digests(digests, self._previous_digests(fed), fed.lengths)
        else:
            digests += self._base
        if self._strict:
            self._check_clean(blocks, rows, place, digests, slots, fed.positions)
            begins_block = rows == 0
            begins_block[fed.starts] = True
            chosen = np.flatnonzero(begins_block)
            self._check_single_writers(blocks[chosen], chosen, slots[chosen], fed.positions[chosen])
        self._rows[blocks, rows, 0] = place
        self._rows[blocks, rows, 1] = digests
        if self._is_chained:
            self._remember(fed, digests[fed.starts + fed.lengths - 1])

    def read(self, fed: Fed) -> Words:
        """The weighted digests in the window of each run's last query, as a sum."""
        reading = self._gather(fed)
        self._look_for_faults(reading, fed)
        weights = self._weights.take(reading.columns, axis=0)
        weights[reading.lasts] *= reading.before_end
        # The windows of a run's earlier queries reach further back than that of its last one.
        firsts = np.maximum(fed.ends - self._window, 0)
        begins = reading.starts + firsts // self._granularity - reading.firsts // self._granularity
        weights[begins] *= self._within >= (firsts % self._granularity)[:, None]
        sums = np.einsum("ij,ij->i", reading.digests, weights)
        totals = np.cumsum(sums)
        return self._doubted(fed, totals[reading.lasts] - totals[begins] + sums[begins])

    def _gather(self, fed: Fed) -> _Reading:
        """All rows that a query of each run may read, through the block table."""
        granularity = self._granularity
        firsts = np.maximum(fed.begins.astype(np.int64) - (self._window - 1), 0)
        begin_blocks, end_blocks = firsts // granularity, -(-fed.ends // granularity)
        counts = end_blocks - begin_blocks
        lasts = np.cumsum(counts) - 1
        starts = lasts - counts + 1
        columns = np.arange(int(lasts[-1]) + 1) + np.repeat(begin_blocks - starts, counts)
        blocks = self._cells.take(columns + np.repeat(fed.slots.astype(np.int64) * self._table.shape[1], counts))
        rows = self._rows.take(blocks, axis=0)
        return _Reading(
            blocks=blocks,
            columns=columns,
            starts=starts,
            lasts=lasts,
            firsts=firsts,
            after_begin=self._within >= (firsts - begin_blocks * granularity)[:, None],
            before_end=self._within < (fed.ends - (end_blocks - 1) * granularity)[:, None],
            places=np.ascontiguousarray(rows[..., 0]),
            digests=np.ascontiguousarray(rows[..., 1]),
        )

    def _previous_digests(self, fed: Fed) -> Words:
        """The digest before each run's first row, read through the table."""
        before = np.maximum(fed.begins - 1, 0)
        blocks = self._table[fed.slots, before // self._granularity]
        rows = self._rows[blocks, before % self._granularity]
        unlike = self._is_unlike(fed, rows[:, 1])
        self._suspect(
            fed,
            unlike,
            lambda run: self._fault(fed.slots[run], before[run], blocks[run], rows[run, 0], "the row its slot wrote"),
        )
        return np.where(fed.begins > 0, rows[:, 1], self._origin)

    def _check_clean(
        self, blocks: Int32s, rows: Ints, place: Words, digests: Words, slots: Int32s, positions: Ints
    ) -> None:
        """A row is written once after its block was zeroed."""
        old = self._rows[blocks, rows]
        dirty = old.any(axis=1)
        if dirty.any():
            at = int(np.argmax(dirty))
            is_same = old[at, 0] == place[at] and old[at, 1] == digests[at]
            raise StampFault(
                f"{self._at(slots[at], positions[at])}: block {blocks[at]} is not clean where position "
                f"{positions[at]} is written, it holds {_found(old[at, 0])}: "
                + ("it was written before, and others may share it" if is_same else "not zeroed, or another's")
            )

    def _look_for_faults(self, reading: _Reading, fed: Fed) -> None:
        """Every readable row is of its own position, and continues the row before it if that may be read too."""
        starts = reading.starts
        expected = mixed(reading.places, self._origin)
        if self._is_chained:
            begins = expected[starts, 0] + self._base
            expected.reshape(-1)[1:] += reading.digests.reshape(-1)[:-1] * np.uint64(CHAIN)
            expected[starts, 0] = begins
        else:
            expected += self._base
        wrong = expected != reading.digests
        if self._is_chained:
            wrong[starts, reading.firsts % self._granularity] &= reading.firsts == 0
        wrong |= is_elsewhere(reading.places, self._places.take(reading.columns, axis=0))
        wrong[starts] &= reading.after_begin
        wrong[reading.lasts] &= reading.before_end
        if wrong.any():
            wrong_runs = np.logical_or.reduceat(wrong.any(axis=1), starts)
            self._suspect(fed, wrong_runs, lambda run: self._wrong_row(reading, fed, wrong, run))

    def _wrong_row(self, reading: _Reading, fed: Fed, wrong: Bools, run: int) -> str:
        """The first wrong row of a run in words."""
        at = int(reading.starts[run])
        at += int(np.argmax(wrong[at : reading.lasts[run] + 1].any(axis=1)))
        row = int(np.argmax(wrong[at]))
        position = int(reading.columns[at]) * self._granularity + row
        if not self._is_chained or position == reading.firsts[run] > 0:
            expected = f"the row of position {position}"
        elif position:
            expected = f"the row that continues position {position - 1}"
        else:
            expected = "the row that begins the sequence"
        return self._fault(fed.slots[run], position, reading.blocks[at], reading.places[at, row], expected)

    def _fault(self, slot: Any, position: Any, block: Any, place: np.uint64, expected: str) -> str:
        where = self._at(slot, position)
        if not block:
            return f"{where}: expected a row, found a hole"
        return f"{where}: expected {expected}, found {_found(place)} in block {int(block)}: stale, zeroed, or another's"


def _found(place: np.uint64) -> str:
    return f"token {int(place) & 0xFFFFFFFF} of position {int(place) >> 32}"
