"""What each step of a plan touches, said before it runs: for streams that are observed (`ordering.py`)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt

from control_plane.messages import BlockList, LoadBack, SlotBinding, Store, TableEdit
from control_plane.messages.columns import Int32s, view
from data_plane.batch.rows import Rows
from data_plane.batch.touched import Touched
from data_plane.faults import PlanFault
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.streams.base import (
    NO_BLOCKS,
    Access,
    BlockSpan,
    Lane,
    SlotState,
    Span,
    StagingBuffers,
    TableRows,
    Tier,
)


class Accesses(Protocol):
    """Asked once for each step, in the order in which the steps are enqueued. Never raises for a plan at fault."""

    def zero(self, lists: Sequence[BlockList]) -> Access:
        """Blocks are cleared."""
        ...

    def tables(self, edits: Sequence[TableEdit]) -> Access:
        """Rows of the block tables change."""
        ...

    def bindings(self, bindings: Sequence[SlotBinding]) -> Access:
        """Slots get new owners."""
        ...

    def forward(self, rows: Rows) -> Access:
        """The model reads and writes through the tables."""
        ...

    def gather(self, store: Store, buffer: int) -> Access:
        """A store's sources go to a staging buffer of the store lane."""
        ...

    def write(self, store: Store, buffer: int) -> Access:
        """That buffer goes to the store's destinations."""
        ...

    def write_directly(self, store: Store) -> Access:
        """A store's sources go to its destinations."""
        ...

    def fill(self, load: LoadBack, buffer: int) -> Access:
        """A load-back's sources go to a staging buffer of the load lane."""
        ...

    def scatter(self, load: LoadBack, buffer: int) -> Access:
        """That buffer goes to the load-back's destinations."""
        ...


class NoAccesses:
    """Nobody observes the streams."""

    def zero(self, lists: Sequence[BlockList]) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def tables(self, edits: Sequence[TableEdit]) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def bindings(self, bindings: Sequence[SlotBinding]) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def forward(self, rows: Rows) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def gather(self, store: Store, buffer: int) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def write(self, store: Store, buffer: int) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def write_directly(self, store: Store) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def fill(self, load: LoadBack, buffer: int) -> Access:
        """Nothing is said."""
        return NO_BLOCKS

    def scatter(self, load: LoadBack, buffer: int) -> Access:
        """Nothing is said."""
        return NO_BLOCKS


class PlanAccesses:
    """Follows the plans with block tables of its own: those of the device are edited when their turn comes, not now.

    What a plan at fault names beyond what there is, is left out: the step itself will raise. Copies between the tiers
    are asked about when they were found to be without fault.
    """

    def __init__(
        self, groups: Sequence[GroupLayout], *, slots: int, widths: Sequence[int], block_counts: Sequence[int]
    ) -> None:
        self._groups = tuple(groups)
        self._slots = slots
        self._block_counts = tuple(block_counts)
        self._tables = HostTables(slots=slots, widths=widths, block_counts=block_counts)

    def zero(self, lists: Sequence[BlockList]) -> Access:
        """Writes the blocks."""
        spans = []
        for each in lists:
            if 0 <= each.group < len(self._groups):
                blocks = view(each.blocks)
                exists = (blocks > 0) & (blocks < self._block_counts[each.group])
                spans.append(BlockSpan(Tier.DEVICE, each.group, blocks[exists]))
        return Access(writes=tuple(spans))

    def tables(self, edits: Sequence[TableEdit]) -> Access:
        """Writes a row for each edit."""
        slots: dict[int, list[int]] = {}
        with suppress(PlanFault):
            for edit in edits:
                self._tables.edit(edit)
                slots.setdefault(edit.group, []).append(edit.slot)
        spans = (TableRows(group, np.array(edited, dtype=np.int32)) for group, edited in slots.items())
        return Access(writes=tuple(spans))

    def bindings(self, bindings: Sequence[SlotBinding]) -> Access:
        """Writes what the model keeps of the slots."""
        slots = np.array([binding.slot for binding in bindings], dtype=np.int32)
        return Access(writes=(SlotState(slots[self._exist(slots)]),))

    def forward(self, rows: Rows) -> Access:
        """Reads the rows' table rows and every block that a query may read; writes the blocks of what is fed.

        Rows that turn out to be lost are among them: a model may compute anything there.
        """
        touched = Touched(rows, self._exist(rows.slots))
        reads: list[Span] = []
        writes: list[Span] = [SlotState(touched.slots)]
        for index, group in enumerate(self._groups):
            read, written = touched.blocks(self._tables.rows(index), group)
            reads += [TableRows(index, touched.slots), BlockSpan(Tier.DEVICE, index, read)]
            writes.append(BlockSpan(Tier.DEVICE, index, written))
        return Access(reads=tuple(reads), writes=tuple(writes))

    def gather(self, store: Store, buffer: int) -> Access:
        """Reads device blocks, writes the buffer."""
        return Access(reads=(_device(store.group, store.sources),), writes=(_staging(Lane.STORE, buffer),))

    def write(self, store: Store, buffer: int) -> Access:
        """Reads the buffer, writes host blocks."""
        return Access(reads=(_staging(Lane.STORE, buffer),), writes=(_host(store.group, store.destinations),))

    def write_directly(self, store: Store) -> Access:
        """Reads device blocks, writes host blocks."""
        return Access(reads=(_device(store.group, store.sources),), writes=(_host(store.group, store.destinations),))

    def fill(self, load: LoadBack, buffer: int) -> Access:
        """Reads host blocks, writes the buffer."""
        return Access(reads=(_host(load.group, load.sources),), writes=(_staging(Lane.LOAD, buffer),))

    def scatter(self, load: LoadBack, buffer: int) -> Access:
        """Reads the buffer, writes device blocks."""
        return Access(reads=(_staging(Lane.LOAD, buffer),), writes=(_device(load.group, load.destinations),))

    def _exist(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        exist: npt.NDArray[np.bool_] = (slots >= 0) & (slots < self._slots)
        return exist


def _device(group: int, blocks: bytes) -> BlockSpan:
    return BlockSpan(Tier.DEVICE, group, view(blocks))


def _host(group: int, blocks: bytes) -> BlockSpan:
    return BlockSpan(Tier.HOST, group, view(blocks))


def _staging(lane: Lane, buffer: int) -> StagingBuffers:
    return StagingBuffers(lane, np.array([buffer], dtype=np.int32))
