"""What each step of a plan touches, said before it runs: for streams that are observed (`ordering.py`)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from control_plane.messages import BlockList, SlotBinding, TableEdit
from control_plane.messages.columns import Int32s, view
from data_plane.batch.rows import Rows
from data_plane.faults import PlanFault
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.streams.base import NO_BLOCKS, Access, BlockSpan, SlotState, Span, TableRows, Tier

Ints = npt.NDArray[Any]


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


class PlanAccesses:
    """Follows the plans with block tables of its own: those of the device are edited when their turn comes, not now.

    What a plan at fault names beyond what there is, is left out: the step itself will raise.
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
        exist = self._exist(rows.slots)
        fed = _Fed(rows, exist)
        reads: list[Span] = []
        writes: list[Span] = [SlotState(fed.slots)]
        for index, group in enumerate(self._groups):
            table = self._tables.table(index)
            touched = _of_states if group.kind == "state" else _of_history
            read, written = touched(fed, table, group)
            reads += [TableRows(index, fed.slots), BlockSpan(Tier.DEVICE, index, read)]
            writes.append(BlockSpan(Tier.DEVICE, index, written))
        return Access(reads=tuple(reads), writes=tuple(writes))

    def _exist(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        exist: npt.NDArray[np.bool_] = (slots >= 0) & (slots < self._slots)
        return exist


class _Fed:
    """What a batch feeds: `[prefixes, ends)` of each slot, of which `[computed, ends)` in every group."""

    def __init__(self, rows: Rows, chosen: npt.NDArray[np.bool_]) -> None:
        self.slots = rows.slots[chosen]
        self.prefixes = rows.prefix_lengths[chosen]
        self.ends = rows.ends[chosen]
        replays = np.zeros(rows.count, dtype=np.int32)
        checkpoints = np.zeros(rows.count, dtype=np.int32)
        replays[: rows.num_extends] = rows.replay_lengths
        checkpoints[: rows.num_extends] = rows.checkpoints
        self.computed = self.prefixes + replays[chosen]
        self.checkpoints = checkpoints[chosen]


def _of_history(fed: _Fed, table: Ints, group: GroupLayout) -> tuple[Int32s, Int32s]:
    """Blocks read and written in a full or sliding group. What is fed again is written in replayable groups only."""
    reach = fed.computed - group.window + 1
    first_read = np.maximum(reach, 0) if group.kind == "sliding" else np.zeros_like(reach)
    first_written = fed.prefixes if group.replayable else fed.computed
    granularity = group.block_granularity
    end_columns = -(-fed.ends // granularity)
    read = _blocks(table, fed.slots, first_read // granularity, end_columns)
    return read, _blocks(table, fed.slots, first_written // granularity, end_columns)


def _of_states(fed: _Fed, table: Ints, group: GroupLayout) -> tuple[Int32s, Int32s]:
    """Blocks read and written in a state group: the snapshot before, those at the checkpoint and at the end."""

    def snapshots(lengths: Int32s) -> Int32s:
        columns = np.maximum(lengths - 1, 0) // group.block_granularity
        return _blocks(table, fed.slots, columns, columns + (lengths > 0))

    return snapshots(fed.computed), np.concatenate([snapshots(fed.checkpoints), snapshots(fed.ends)])


def _blocks(table: Ints, slots: Ints, firsts: Ints, ends: Ints) -> Int32s:
    """What stands in `table[slot, first:end]` of each slot, without the holes."""
    ends = np.minimum(ends, table.shape[1])
    counts = np.maximum(ends - firsts, 0)
    starts = np.cumsum(counts) - counts
    columns = np.arange(int(counts.sum())) + np.repeat(firsts - starts, counts)
    blocks: Int32s = table[np.repeat(slots, counts), columns]
    return blocks[blocks > 0]
