"""The arena, the block tables, and the work on them."""

import os
from pathlib import Path

import pytest

from control_plane.errors import ConfigError
from control_plane.messages import BlockList, TableEdit
from control_plane.messages.columns import pack
from data_plane.faults import PlanFault
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.ops.table_edits import HostTableEdits
from data_plane.ops.zeroing import HostZeroing

WIDE = GroupLayout("wide", "full", 16, 96)
NARROW = GroupLayout("narrow", "full", 8, 40)


def make(*groups: GroupLayout, device_blocks: int = 3, slots: int = 4) -> tuple[ArenaMemory, HostTables]:
    layout = plan_layout(groups)
    tables = HostTables(
        slots=slots,
        widths=[8] * len(groups),
        block_counts=[(device_blocks + 1) * group.packing for group in layout.groups],
    )
    return ArenaMemory(layout, Arena(layout, device_blocks=device_blocks, device="cpu"), tables), tables


def test_a_parent_is_a_whole_number_of_every_groups_blocks() -> None:
    """96 and 40 bytes meet at 480: 5 wide blocks or 12 narrow ones. A packing that is asked for is kept."""
    layout = plan_layout([WIDE, NARROW])
    assert layout.parent_bytes == 480
    assert [group.packing for group in layout.groups] == [5, 12]
    alone = plan_layout([GroupLayout("packed", "full", 16, 96, packing=4)])
    assert (alone.parent_bytes, alone.groups[0].packing) == (384, 4)


def test_startup_shows_what_was_laid_out() -> None:
    """A line a group with its numbers, and one for the arena."""
    lines = plan_layout([WIDE, NARROW]).lines(3)
    assert lines[0] == "group wide: full, 1 layers, 16 tokens and 96 bytes a block, 5 a parent; 240 tokens if alone"
    assert lines[2].startswith("arena: 3 parents of 480 bytes and the null one")


def test_groups_see_the_same_bytes_as_blocks_of_their_own() -> None:
    """Block 5 of the wide group and block 12 of the narrow one both begin parent 1."""
    memory, _ = make(WIDE, NARROW)
    wide, narrow = memory.blocks(0), memory.blocks(1)
    assert wide.shape == (20, 96)
    assert narrow.shape == (48, 40)
    wide[5, 0] = 7
    assert narrow[12, 0] == 7
    assert narrow.sum() == 7


def test_zeroing_clears_the_named_blocks_and_no_neighbour() -> None:
    """Everything is full of ones; three blocks of one group and one of the other become clean."""
    memory, _ = make(WIDE, NARROW)
    memory.blocks(0)[:] = 1
    zeroing = HostZeroing(memory, groups=2)
    zeroing.zero([BlockList(0, pack([5, 9, 6])), BlockList(1, pack([47])), BlockList(1, b"")])
    wide, narrow = memory.blocks(0), memory.blocks(1)
    assert not wide[[5, 6, 9]].any()
    assert not narrow[47].any()
    assert wide[[4, 7, 8, 10]].all()
    assert narrow[46].all()


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (BlockList(0, pack([3, 0])), "block 0 is null and never written"),
        (BlockList(0, pack([1, 20])), "block 20 is not among the 20"),
        (BlockList(0, pack([-1])), "block -1 is not among"),
        (BlockList(2, pack([1])), "group 2 of 2"),
    ],
)
def test_zeroing_refuses_blocks_that_do_not_exist(blocks: BlockList, message: str) -> None:
    """A negative index would silently wrap to another block: it is refused like any other."""
    memory, _ = make(WIDE, NARROW)
    memory.blocks(0)[:] = 1
    with pytest.raises(PlanFault, match=message):
        HostZeroing(memory, groups=2).zero([blocks])
    assert memory.blocks(0).all()


def test_edits_set_append_and_clear_a_row() -> None:
    """Growth writes behind what is there; an edit without blocks clears from its first entry on; others stay."""
    memory, tables = make(WIDE, NARROW)
    edits = HostTableEdits(tables)
    edits.apply([TableEdit(1, 0, 0, pack([5, 6])), TableEdit(1, 1, 0, pack([13])), TableEdit(2, 0, 0, pack([7]))])
    edits.apply([TableEdit(1, 0, 2, pack([0, 8]))])
    assert memory.table(0)[1].tolist() == [5, 6, 0, 8, 0, 0, 0, 0]
    edits.apply([TableEdit(1, 0, 1, b"")])
    assert memory.table(0)[1].tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    assert memory.table(0)[2].tolist() == [7, 0, 0, 0, 0, 0, 0, 0]
    assert memory.table(1)[1].tolist() == [13, 0, 0, 0, 0, 0, 0, 0]


def test_a_slot_released_and_taken_in_one_plan_ends_with_the_new_row() -> None:
    """Edits are carried out in order: nothing of the longer old row is left behind the shorter new one."""
    memory, tables = make(WIDE)
    edits = HostTableEdits(tables)
    edits.apply([TableEdit(0, 0, 0, pack([1, 2, 3]))])
    edits.apply([TableEdit(0, 0, 0, b""), TableEdit(0, 0, 0, pack([2]))])
    assert memory.table(0)[0].tolist() == [2, 0, 0, 0, 0, 0, 0, 0]


def test_an_edit_names_the_cells_it_set() -> None:
    """What a device copy must be sent: the entries written, or those that a release cleared and no more."""
    _, tables = make(WIDE, NARROW)
    assert tables.edit(TableEdit(1, 0, 2, pack([3, 1]))) == (10, 12)
    assert tables.edit(TableEdit(3, 1, 0, pack([4]))) == (56, 57)
    assert tables.edit(TableEdit(1, 0, 0, b"")) == (8, 12)
    assert tables.edit(TableEdit(1, 0, 0, b"")) == (8, 8)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (TableEdit(4, 0, 0, pack([1])), "slot 4 of 4"),
        (TableEdit(-1, 0, 0, pack([1])), "slot -1 of 4"),
        (TableEdit(0, 1, 0, pack([1])), "group 1 of 1"),
        (TableEdit(0, 0, 7, pack([1, 2])), r"slot 0, group 0: entries \[7, 9\) of a row of 8"),
        (TableEdit(0, 0, -1, b""), r"entries \[-1, -1\)"),
        (TableEdit(0, 0, 0, pack([1, 4])), "slot 0, group 0: block 4 of 4"),
        (TableEdit(0, 0, 0, pack([-2])), "block -2 of 4"),
    ],
)
def test_edits_outside_the_tables_are_refused(edit: TableEdit, message: str) -> None:
    """The message names what is wrong; the tables stay as they were."""
    memory, tables = make(WIDE)
    with pytest.raises(PlanFault, match=message):
        HostTableEdits(tables).apply([edit])
    assert not memory.table(0).any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads this process's size from /proc")
def test_arena_memory_is_committed_as_it_is_written() -> None:
    """A gigabyte of arena costs a CPU next to nothing until blocks are written."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    layout = plan_layout([GroupLayout("big", "full", 16, 2**20)])
    before = resident_bytes()
    blocks = Arena(layout, device_blocks=1024, device="cpu").blocks(layout.groups[0])
    blocks[1024] = 3
    assert resident_bytes() - before < 2**28


def test_an_arena_beyond_all_memory_is_a_matter_of_configuration() -> None:
    """The answer names the setting, its value and what to do."""
    layout = plan_layout([GroupLayout("big", "full", 16, 2**20)])
    with pytest.raises(ConfigError, match=r"device_blocks=1099511627776 of 1048576 bytes .* lower device_blocks"):
        Arena(layout, device_blocks=2**40, device="cpu")
