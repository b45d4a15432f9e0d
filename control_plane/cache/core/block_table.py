"""Block tables of every slot: row `i` of a group's table covers the tokens `[i * g, (i + 1) * g)`.

Positions are absolute: a hole is block 0 and nothing is ever compacted. Every change is also kept as a `TableEdit`,
since the data plane holds its own copy and is told only what changed.
"""

from collections.abc import Sequence

import numpy as np

from control_plane.messages import TableEdit
from control_plane.messages.columns import INT32, Int32s, pack


class BlockTables:
    """One int32 table [slots, blocks of the longest context] a group, and how much of each row is used."""

    def __init__(self, *, slots: int, granularities: Sequence[int], longest_tokens: int) -> None:
        self.granularities = tuple(granularities)
        # np.zeros commits memory only where it is written, so a long context costs nothing until it is used.
        self._tables = [np.zeros((slots, -(-longest_tokens // g)), dtype=INT32) for g in granularities]
        # One number at a time is read of these, by slot and never by column: lists are much quicker at that.
        self._held = [[0] * slots for _ in granularities]
        self._live_from = [[0] * slots for _ in granularities]
        self._slots = slots
        self._edits: list[TableEdit] = []

    @property
    def slot_count(self) -> int:
        """How many slots there are."""
        return self._slots

    def held(self, slot: int, group: int) -> int:
        """Table rows in use, holes included."""
        return self._held[group][slot]

    def blocks(self, slot: int, group: int) -> Int32s:
        """A view of the rows of a slot, holes included."""
        return self._tables[group][slot, : self._held[group][slot]]

    def block(self, slot: int, group: int, row: int) -> int:
        """What one row points at; 0: a hole."""
        return int(self._tables[group][slot, row])

    def live_from(self, slot: int, group: int) -> int:
        """Leading rows that were given up; all before it are holes."""
        return self._live_from[group][slot]

    def live_blocks(self, slot: int, group: int) -> list[tuple[int, int]]:
        """(row, block) of every row with a block."""
        first = self._live_from[group][slot]
        row = self._tables[group][slot, first : self._held[group][slot]]
        return [(first + position, block) for position, block in enumerate(row.tolist()) if block]

    def covered_tokens(self, slot: int) -> int:
        """Tokens that have a block in every group."""
        return min(held[slot] * g for held, g in zip(self._held, self.granularities, strict=True))

    def set_rows(self, slot: int, group: int, first: int, blocks: Sequence[int]) -> None:
        """Grow a slot's table by `blocks` from row `first` on; rows between what is held and `first` are holes."""
        if not blocks:
            # A hit may need no block of a group and still begin behind its prefix.
            self._held[group][slot] = max(self._held[group][slot], first)
            return
        assert first >= self._held[group][slot], f"slot {slot} of group {group} holds row {first} already"
        self._tables[group][slot, first : first + len(blocks)] = blocks
        self._held[group][slot] = first + len(blocks)
        self._edits.append(TableEdit(slot, group, first, pack(blocks)))

    def make_holes(self, slot: int, group: int, first: int, count: int) -> None:
        """Rows `[first, first + count)` have nothing behind them any more."""
        self._tables[group][slot, first : first + count] = 0
        self._live_from[group][slot] = first + count
        self._edits.append(TableEdit(slot, group, first, bytes(4 * count)))

    def replace(self, slot: int, group: int, index: int, block: int) -> None:
        """Point one row elsewhere."""
        assert index < self._held[group][slot], f"slot {slot} of group {group} holds no row {index}"
        self._tables[group][slot, index] = block
        self._edits.append(TableEdit(slot, group, index, pack([block])))

    def clear(self, slot: int) -> None:
        """Forget a slot's tables."""
        for group, table in enumerate(self._tables):
            held = self._held[group][slot]
            if held:
                table[slot, :held] = 0
                self._held[group][slot] = 0
                self._live_from[group][slot] = 0
                self._edits.append(TableEdit(slot, group, 0, b""))

    def drain_edits(self) -> tuple[TableEdit, ...]:
        """What the data plane must be told, in order; each edit once."""
        if not self._edits:
            return ()
        edits = tuple(self._edits)
        self._edits.clear()
        return edits

    def slots_holding(self, group: int, blocks: Int32s) -> list[int]:
        """Every slot whose table names one of `blocks`. Reads all tables: for faults, not for rounds."""
        return [
            slot
            for slot in range(self._slots)
            if self._held[group][slot] and np.isin(self.blocks(slot, group), blocks).any()
        ]
