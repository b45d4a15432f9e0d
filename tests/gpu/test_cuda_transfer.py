"""Pages between a CUDA device and the host memory through which they pass to another device."""

from typing import Any

import numpy as np

from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.layout import plan_layout
from data_plane.memory.pinned import host_bytes
from data_plane.memory.tables import CudaTables
from data_plane.model.base import GroupLayout
from data_plane.streams.base import Streams
from data_plane.transfer.page_copies import CudaPageCopies

GROUPS = (GroupLayout("wide", "full", 16, 4096), GroupLayout("odd", "full", 8, 24))


def test_a_page_leaves_on_one_stream_and_arrives_on_another(cupy: Any, streams: Streams) -> None:
    """Block 2 of each group goes to block 5: it arrives to the byte, and its neighbours are as they were."""
    layout = plan_layout(GROUPS)
    counts = [6 * group.packing for group in layout.groups]
    tables = CudaTables(slots=1, widths=[4, 4], block_counts=counts)
    memory = ArenaMemory(layout, Arena(layout, device_blocks=5, device="cuda"), tables)
    copies = CudaPageCopies(memory, groups=2)
    chance = np.random.default_rng(3)
    for index, group in enumerate(layout.groups):
        blocks = memory.blocks(index)
        blocks[:] = cupy.asarray(chance.integers(0, 256, size=blocks.shape, dtype=np.uint8))
        cupy.cuda.Device().synchronize()
        expected = blocks.get()
        expected[5] = expected[2]
        page = host_bytes(group.block_bytes, device="cuda")
        streams.write.enqueue(lambda index=index, page=page: copies.read(index, 2, page), "reading")
        streams.write.record().wait_host()
        streams.load.enqueue(lambda index=index, page=page: copies.write(index, 5, page), "writing")
        streams.load.record().wait_host()
        assert (memory.blocks(index).get() == expected).all()
