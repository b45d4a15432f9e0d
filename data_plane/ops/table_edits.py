"""Tell the device which slots point where now."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from control_plane.messages import TableEdit
from data_plane.cuda import load_cupy
from data_plane.memory.pinned import IdShipper
from data_plane.memory.tables import CudaTables, HostTables

THREADS = 256

EDIT_SOURCE = r"""
extern "C" __global__ void edit_tables(int* cells, const int* edits, const int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) cells[edits[i]] = edits[count + i];
}
"""


class TableEdits(Protocol):
    """Carries out the edits of a plan on the current stream."""

    def apply(self, edits: Sequence[TableEdit]) -> None:
        """In order. Raises PlanFault for an edit outside the tables."""
        ...


class HostTableEdits:
    """Edits the host's tables, which the model reads."""

    def __init__(self, tables: HostTables) -> None:
        self._tables = tables

    def apply(self, edits: Sequence[TableEdit]) -> None:
        """Carry out the edits in order."""
        for edit in edits:
            self._tables.edit(edit)


class CudaTableEdits:
    """Edits the host's tables, then sends the cells that changed: one copy and one kernel a round.

    Sent are cells and their final values, read from the host's tables after the last edit. So two edits of one cell
    (a slot released and taken again in one round) send the same value twice, and no order of threads matters.
    """

    def __init__(self, tables: CudaTables) -> None:
        self._tables = tables
        self._shipper = IdShipper()
        self._kernel = load_cupy().RawKernel(EDIT_SOURCE, "edit_tables")

    def apply(self, edits: Sequence[TableEdit]) -> None:
        """Carry out the edits in order."""
        ranges = [self._tables.edit(edit) for edit in edits]
        cells = np.concatenate([np.arange(first, end, dtype=np.int32) for first, end in ranges])
        if len(cells):
            shipped = self._shipper.ship(np.concatenate([cells, self._tables.cells[cells]]))
            arguments = (self._tables.device_cells, shipped, np.int32(len(cells)))
            self._kernel((-(-len(cells) // THREADS),), (THREADS,), arguments)
