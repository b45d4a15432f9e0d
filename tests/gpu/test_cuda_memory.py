"""The arena, the tables and the kernels on them, beside the host's versions."""

from typing import Any

import numpy as np
import pytest

from control_plane.messages import BlockList, TableEdit
from control_plane.messages.columns import pack
from data_plane.faults import PlanFault
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.layout import plan_layout
from data_plane.memory.pinned import IdShipper
from data_plane.memory.tables import CudaTables
from data_plane.model.base import GroupLayout
from data_plane.ops.table_edits import CudaTableEdits
from data_plane.ops.zeroing import CudaZeroing
from data_plane.streams.base import Streams

# The first is a whole number of 16-byte words, the second is not.
GROUPS = (GroupLayout("wide", "full", 16, 4096), GroupLayout("odd", "full", 8, 24))


def make() -> tuple[ArenaMemory, CudaTables]:
    layout = plan_layout(GROUPS)
    counts = [4 * group.packing for group in layout.groups]
    tables = CudaTables(slots=8, widths=[300, 20], block_counts=counts)
    return ArenaMemory(layout, Arena(layout, device_blocks=3, device="cuda"), tables), tables


def test_torch_shares_the_arena_and_the_tables(cupy: Any) -> None:
    """One memory, two names: what torch writes is what cupy reads."""
    import torch

    memory, _ = make()
    blocks, table = torch.from_dlpack(memory.blocks(0)), torch.from_dlpack(memory.table(1))
    assert blocks.data_ptr() == memory.blocks(0).data.ptr
    assert blocks.shape == memory.blocks(0).shape
    blocks[5, 7] = 9
    table[3, 2] = 4
    torch.cuda.synchronize()
    assert int(memory.blocks(0)[5, 7].get()) == 9
    assert memory.table(1).get()[3].tolist() == [0, 0, 4] + [0] * 17


def test_the_kernel_zeroes_the_named_blocks_and_no_neighbour(cupy: Any, streams: Streams) -> None:
    """All bytes are one; blocks of both groups become clean; the rest is compared byte by byte."""
    memory, _ = make()
    zeroing = CudaZeroing(memory, groups=2)
    memory.blocks(0)[:] = 1
    expected = memory.blocks(0).get()
    flat = expected.reshape(-1)
    # Blocks of the second group past those that the first group's list clears.
    last = len(memory.blocks(1)) - 1
    expected[[4, 8, 5]] = 0
    flat[last * 24 :] = 0
    flat[(last - 2) * 24 : (last - 1) * 24] = 0
    cupy.cuda.Device().synchronize()
    lists = [BlockList(0, pack([4, 8, 5])), BlockList(0, b""), BlockList(1, pack([last, last - 2]))]
    streams.forward.enqueue(lambda: zeroing.zero(lists), "zero")
    streams.forward.record().wait_host()
    assert (memory.blocks(0).get() == expected).all()


def test_bad_blocks_are_refused_before_any_kernel() -> None:
    """The null block and one past the end."""
    memory, _ = make()
    zeroing = CudaZeroing(memory, groups=2)
    for block in (0, len(memory.blocks(0))):
        with pytest.raises(PlanFault):
            zeroing.zero([BlockList(0, pack([block]))])


def test_the_devices_tables_follow_the_hosts(streams: Streams) -> None:
    """A thousand random edits, some releasing a slot and filling it again in one plan: both copies are equal."""
    memory, tables = make()
    edits = CudaTableEdits(tables)
    chance = np.random.default_rng(3)
    expected = [np.zeros((8, 300), dtype=np.int32), np.zeros((8, 20), dtype=np.int32)]
    for _ in range(100):
        plan = []
        for _ in range(10):
            group, slot = int(chance.integers(2)), int(chance.integers(8))
            width = expected[group].shape[1]
            first = int(chance.integers(width))
            blocks = chance.integers(0, 4, size=int(chance.integers(0, width - first + 1)), dtype=np.int32)
            plan.append(TableEdit(slot, group, first, pack(blocks)))
            row = expected[group][slot]
            if len(blocks):
                row[first : first + len(blocks)] = blocks
            else:
                row[first:] = 0
        streams.forward.enqueue(lambda plan=plan: edits.apply(plan), "tables")
    streams.forward.record().wait_host()
    for group in (0, 1):
        assert (memory.table(group).get() == expected[group]).all()


def test_ids_on_their_way_are_not_overwritten(cupy: Any, streams: Streams, hold: Any) -> None:
    """D5: the stream is held while ten lists are shipped; each arrives as it was. Later ones reuse the pages."""
    shipper = IdShipper()
    lists = [np.arange(number, number + 2000, dtype=np.int32) for number in range(10)]
    arrived: list[Any] = []

    def ship(ids: Any) -> None:
        arrived.append(shipper.ship(ids))

    streams.forward.enqueue(lambda: ship(lists[0]), "warm up")
    streams.forward.record().wait_host()
    arrived.clear()
    streams.forward.enqueue(hold, "hold")
    for ids in lists:
        streams.forward.enqueue(lambda ids=ids: ship(ids.copy()), "ship")
    done = streams.forward.record()
    hold.release()
    done.wait_host()
    for ids, there in zip(lists, arrived, strict=True):
        assert (there.get() == ids).all()
    pages = len(shipper._pages)
    for ids in lists:
        streams.forward.enqueue(lambda ids=ids: ship(ids), "ship again")
        streams.forward.record().wait_host()
    assert len(shipper._pages) == pages
