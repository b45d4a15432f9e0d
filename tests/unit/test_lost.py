"""Which rows cannot be computed: those of slots that missed a round, and those that find rubbish in their tables."""

from typing import Any

import numpy as np
import pytest

from control_plane.messages import ForwardBatch, TableEdit
from control_plane.messages.columns import pack
from data_plane.batch.rows import Rows
from data_plane.lost import Lost
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout

GROUPS = (GroupLayout("full", "full", 4, 64), GroupLayout("sliding", "sliding", 4, 64, window=4))


class Slots:
    """Four slots; slot s holds blocks 5s+1 ... 5s+5 in both groups."""

    def __init__(self) -> None:
        self.tables = HostTables(slots=4, widths=[8, 8], block_counts=[30, 30])
        self.lost = Lost(GROUPS, self.tables)
        for slot in range(4):
            for group in range(2):
                self.edit(TableEdit(slot, group, 0, pack(range(5 * slot + 1, 5 * slot + 6))))

    def edit(self, *edits: TableEdit) -> None:
        for edit in edits:
            self.tables.edit(edit)
        self.lost.edited(edits)

    def marked(self, *slots: int) -> list[int]:
        """The slots that are lost of a batch of decodes at position 6."""
        rows = decodes(*slots)
        self.lost.mark(rows)
        return rows.slots[rows.lost].tolist()


def decodes(*slots: int) -> Rows:
    ones, sixes = pack([1] * len(slots)), pack([6] * len(slots))
    return Rows(ForwardBatch(pack(slots), pack(slots), 0, ones, sixes, b"", b"", b"", b"", 1))


def ids(*blocks: int) -> Any:
    return np.array(blocks, dtype=np.int32)


@pytest.mark.parametrize("group", [0, 1])
def test_whoever_has_a_spoiled_block_in_its_table_is_lost(group: int) -> None:
    """Slot 1 holds block 8; the same number of the other group is another block."""
    slots = Slots()
    slots.edit(TableEdit(1, 1 - group, 0, b""))
    slots.lost.spoiled(group, ids(8))
    assert slots.marked(0, 1, 2) == [1]


def test_a_block_that_leaves_the_table_before_the_round_loses_nobody() -> None:
    """Spoiled while it stands there, then replaced: what the row reads is as it should be."""
    slots = Slots()
    slots.lost.spoiled(0, ids(8))
    slots.edit(TableEdit(1, 0, 2, pack([29])))
    assert slots.marked(0, 1, 2) == []


def test_a_spoiled_block_that_enters_a_table_loses_its_row() -> None:
    """It lay free when it was spoiled; and once it is renewed it loses nobody any more."""
    slots = Slots()
    slots.lost.spoiled(1, ids(27))
    assert slots.marked(0, 1) == []
    slots.edit(TableEdit(0, 1, 5, pack([27])))
    slots.lost.renewed(1, ids(27))
    assert slots.marked(0, 1) == []
    slots.lost.spoiled(1, ids(27))
    assert slots.marked(0, 1) == [0]


def test_a_lost_slot_stays_so_until_it_has_a_new_owner() -> None:
    """Its table is right again, but it missed a round: only a binding, and clean blocks, make it whole."""
    slots = Slots()
    slots.lost.spoiled(0, ids(8))
    assert slots.marked(1) == [1]
    slots.lost.renewed(0, ids(8))
    assert slots.marked(0, 1) == [1]
    slots.lost.bound(1)
    assert slots.marked(1) == [1]  # block 7 of both groups should have been written in the first round
    slots.lost.bound(1)
    for group in (0, 1):
        slots.lost.renewed(group, ids(7))
    assert slots.marked(0, 1, 2, 3) == []


def test_what_a_failed_batch_should_have_written_is_spoiled_for_all_who_hold_it() -> None:
    """Slot 2 was to write position 6, in block 12, and fails; slot 3 comes to share that block in one of the groups."""
    slots = Slots()
    slots.lost.miss(decodes(2))
    assert slots.marked(0, 1, 3) == []
    slots.edit(TableEdit(3, 1, 4, pack([12])))
    assert slots.marked(0, 1, 3) == [3]


def test_slots_that_do_not_exist_are_left_to_the_model() -> None:
    """Marking a batch at fault raises nothing, nor does losing it."""
    slots = Slots()
    slots.lost.spoiled(0, ids(8))
    assert slots.marked(0, 1, 99) == [1]
    slots.lost.miss(decodes(-1, 99))
    assert slots.marked(0) == []
