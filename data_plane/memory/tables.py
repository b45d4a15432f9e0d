"""The block tables of every slot, group by group: which block holds which tokens.

The host's copy is authoritative. On a CPU it is also what the model reads; on CUDA a device copy follows it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from control_plane.messages import TableEdit
from control_plane.messages.columns import Int32s, view
from data_plane.cuda import load_cupy
from data_plane.faults import PlanFault


class HostTables:
    """int32 [slots, widths[group]] a group, all in one run of cells; 0 is a hole."""

    def __init__(self, *, slots: int, widths: Sequence[int], block_counts: Sequence[int]) -> None:
        """`widths` are the blocks of the longest context, `block_counts` the blocks that there are, block 0 too."""
        assert slots * sum(widths) < 2**31, "block tables are addressed by int32 cells"
        self._slots = slots
        self._widths = tuple(widths)
        self._block_counts = tuple(block_counts)
        self._first_cells = [slots * sum(widths[:group]) for group in range(len(widths))]
        self.cells: Int32s = np.zeros(slots * sum(widths), dtype=np.int32)
        self._tables = [
            self.cells[first : first + slots * width].reshape(slots, width)
            for first, width in zip(self._first_cells, widths, strict=True)
        ]
        # How far each row was ever filled, so that releasing a slot costs what it held and not the longest context.
        self._filled = np.zeros((len(widths), slots), dtype=np.int64)

    def table(self, group: int) -> Any:
        """The table that the model reads."""
        return self._tables[group]

    def rows(self, group: int) -> Int32s:
        """The host's copy, which is always as the last edit left it."""
        return self._tables[group]

    def block_count(self, group: int) -> int:
        """How many blocks there are, block 0 too."""
        return self._block_counts[group]

    def edit(self, edit: TableEdit) -> tuple[int, int]:
        """Carry out one edit; return the range of cells that it set. Raises PlanFault, having changed nothing."""
        blocks = view(edit.blocks)
        self._check(edit, blocks)
        row = self._tables[edit.group][edit.slot]
        filled = int(self._filled[edit.group, edit.slot])
        if len(blocks):
            end = edit.first + len(blocks)
            row[edit.first : end] = blocks
            self._filled[edit.group, edit.slot] = max(filled, end)
        else:
            end = max(filled, edit.first)
            row[edit.first : end] = 0
            self._filled[edit.group, edit.slot] = min(filled, edit.first)
        row_cell = self._first_cells[edit.group] + edit.slot * self._widths[edit.group]
        return row_cell + edit.first, row_cell + end

    def _check(self, edit: TableEdit, blocks: Int32s) -> None:
        if not 0 <= edit.group < len(self._widths):
            raise PlanFault(f"table edit: group {edit.group} of {len(self._widths)}")
        if not 0 <= edit.slot < self._slots:
            raise PlanFault(f"table edit: slot {edit.slot} of {self._slots}")
        width = self._widths[edit.group]
        if edit.first < 0 or edit.first + len(blocks) > width:
            raise PlanFault(
                f"table edit: slot {edit.slot}, group {edit.group}: entries [{edit.first}, {edit.first + len(blocks)}) "
                f"of a row of {width}"
            )
        limit = self._block_counts[edit.group]
        if len(blocks) and not (blocks.min() >= 0 and blocks.max() < limit):
            wrong = next(int(block) for block in blocks if not 0 <= block < limit)
            raise PlanFault(f"table edit: slot {edit.slot}, group {edit.group}: block {wrong} of {limit}")


class CudaTables(HostTables):
    """The same with a copy on the device, which is what the model reads there."""

    def __init__(self, *, slots: int, widths: Sequence[int], block_counts: Sequence[int]) -> None:
        super().__init__(slots=slots, widths=widths, block_counts=block_counts)
        self.device_cells = load_cupy().zeros(len(self.cells), dtype=np.int32)

    def table(self, group: int) -> Any:
        """The device's copy."""
        first, width = self._first_cells[group], self._widths[group]
        return self.device_cells[first : first + self._slots * width].reshape(self._slots, width)
