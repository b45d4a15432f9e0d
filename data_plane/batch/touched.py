"""Which blocks a batch reads and writes, group by group, as its block tables stand."""

from typing import Any

import numpy as np
import numpy.typing as npt

from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import GroupLayout

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


class Touched:
    """What some rows of a batch feed: `[prefixes, ends)` of each slot, of which `[computed, ends)` in every group."""

    def __init__(self, rows: Rows, chosen: Bools) -> None:
        self.slots = rows.slots[chosen]
        self._prefixes = rows.prefix_lengths[chosen]
        self._ends = rows.ends[chosen]
        replays = np.zeros(rows.count, dtype=np.int32)
        checkpoints = np.zeros(rows.count, dtype=np.int32)
        replays[: rows.num_extends] = rows.replay_lengths
        checkpoints[: rows.num_extends] = rows.checkpoints
        self._computed = self._prefixes + replays[chosen]
        self._checkpoints = checkpoints[chosen]

    def blocks(self, table: Ints, group: GroupLayout) -> tuple[Int32s, Int32s]:
        """Blocks read and written in a group whose table is int32 [slots, columns]. Holes are nothing."""
        return self._of_states(table, group) if group.kind == "state" else self._of_history(table, group)

    def _of_history(self, table: Ints, group: GroupLayout) -> tuple[Int32s, Int32s]:
        """In a full or sliding group. What is fed again is written in replayable groups only."""
        reach = self._computed - group.window + 1
        first_read = np.maximum(reach, 0) if group.kind == "sliding" else np.zeros_like(reach)
        first_written = self._prefixes if group.replayable else self._computed
        granularity = group.block_granularity
        end_columns = -(-self._ends // granularity)
        read = _blocks(table, self.slots, first_read // granularity, end_columns)
        return read, _blocks(table, self.slots, first_written // granularity, end_columns)

    def _of_states(self, table: Ints, group: GroupLayout) -> tuple[Int32s, Int32s]:
        """In a state group: the snapshot before, those at the checkpoint and at the end."""

        def snapshots(lengths: Int32s) -> Int32s:
            columns = np.maximum(lengths - 1, 0) // group.block_granularity
            return _blocks(table, self.slots, columns, columns + (lengths > 0))

        return snapshots(self._computed), np.concatenate([snapshots(self._checkpoints), snapshots(self._ends)])


def _blocks(table: Ints, slots: Ints, firsts: Ints, ends: Ints) -> Int32s:
    """What stands in `table[slot, first:end]` of each slot, without the holes."""
    ends = np.minimum(ends, table.shape[1])
    counts = np.maximum(ends - firsts, 0)
    starts = np.cumsum(counts) - counts
    columns = np.arange(int(counts.sum())) + np.repeat(firsts - starts, counts)
    blocks: Int32s = table[np.repeat(slots, counts), columns]
    return blocks[blocks > 0]
