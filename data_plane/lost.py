"""What must not be computed, because what it goes on from was never written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from control_plane.messages import TableEdit
from control_plane.messages.columns import Int32s, view
from data_plane.batch.rows import Rows
from data_plane.batch.touched import Touched
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout

Bools = npt.NDArray[np.bool_]


class Lost:
    """Slots whose request missed a round, and device blocks that do not hold what they should. Forward stream alone.

    The planner learns of a failed load-back or forward after it has planned more rounds. Rows of those that read what
    is missing would raise, and with them their whole batch; they are marked instead. A slot is lost until it has a
    new owner, a block until it is zeroed or loaded. What a lost row should have written is missing too, and somebody
    else may share it by then.
    """

    def __init__(self, groups: Sequence[GroupLayout] = (), tables: HostTables | None = None) -> None:
        """`tables` are the block tables of `groups`. Without them slots are known, and no blocks."""
        self._groups = tuple(groups)
        self._tables: list[npt.NDArray[Any]] = [] if tables is None else [tables.rows(i) for i in range(len(groups))]
        self._blocks = [np.zeros(0 if tables is None else tables.block_count(i), np.bool_) for i in range(len(groups))]
        self._slots: set[int] = set()
        # Among these are all whose table has such a block, so that a round costs nothing while the others lie free.
        self._suspects: set[int] = set()
        self._has_blocks = False

    def mark(self, rows: Rows) -> None:
        """Set `rows.lost` for the rows that cannot be computed: they miss this round as well."""
        if not self._slots and not self._suspects:
            return
        self._suspects = {slot for slot in self._suspects if self._has_spoiled(slot)}
        missing: Bools = np.isin(rows.slots, [*self._slots, *self._suspects])
        if missing.any():
            rows.lost |= missing
            self._miss(rows, missing)

    def miss(self, rows: Rows) -> None:
        """None of these rows was computed."""
        self._miss(rows, np.ones(rows.count, dtype=np.bool_))

    def bound(self, slot: int) -> None:
        """A slot has a new owner."""
        self._slots.discard(slot)

    def spoiled(self, group: int, blocks: Int32s) -> None:
        """What should be in these blocks is not."""
        bad, table = self._blocks[group], self._tables[group]
        bad[blocks] = True
        self._has_blocks = True
        self._suspects.update(np.flatnonzero(bad[table].any(axis=1)).tolist())

    def renewed(self, group: int, blocks: Int32s) -> None:
        """These blocks hold what they should again: zeros for a new owner, or what was loaded."""
        if self._has_blocks:
            self._blocks[group][blocks] = False
            self._has_blocks = any(bad.any() for bad in self._blocks)

    def edited(self, edits: Sequence[TableEdit]) -> None:
        """The tables have changed."""
        if self._has_blocks:
            self._suspects.update(edit.slot for edit in edits if self._blocks[edit.group][view(edit.blocks)].any())

    def _miss(self, rows: Rows, missing: Bools) -> None:
        self._slots.update(rows.slots[missing].tolist())
        touched = Touched(rows, missing & self._exist(rows))
        for index, (group, table) in enumerate(zip(self._groups, self._tables, strict=True)):
            _, written = touched.blocks(table, group)
            if len(written):
                self.spoiled(index, written)

    def _exist(self, rows: Rows) -> Bools:
        """Rows of slots that there are. The others are the model's to refuse."""
        slots = len(self._tables[0]) if self._tables else 0
        exist: Bools = (rows.slots >= 0) & (rows.slots < slots)
        return exist

    def _has_spoiled(self, slot: int) -> bool:
        """Whether a slot's tables hold a block that does not hold what it should."""
        return any(bad[table[slot]].any() for bad, table in zip(self._blocks, self._tables, strict=True))
