"""Make blocks clean for their new owner: what an earlier owner left must never be read as the new one's."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from control_plane.messages import BlockList
from control_plane.messages.columns import Int32s, view
from data_plane.faults import PlanFault
from data_plane.memory.pinned import IdShipper
from data_plane.model.base import DeviceMemory
from data_plane.ops.word_kernel import word_kernel

# One row of thread blocks an id; each thread clears words a stride apart.
ZERO_SOURCE = r"""
extern "C" __global__ void zero_blocks(word* arena, const int* ids, const long long words) {
    word* block = arena + (long long)ids[blockIdx.x] * words;
    const long long stride = (long long)gridDim.y * blockDim.x;
    for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < words; i += stride) block[i] = word();
}
"""


class Zeroing(Protocol):
    """Zeroes the blocks of a plan on the current stream."""

    def zero(self, lists: Sequence[BlockList]) -> None:
        """Raises PlanFault for a block that does not exist or is null."""
        ...


class HostZeroing:
    """Writes zeros, on the thread of the stream."""

    def __init__(self, memory: DeviceMemory, *, groups: int) -> None:
        self._blocks = [memory.blocks(group) for group in range(groups)]

    def zero(self, lists: Sequence[BlockList]) -> None:
        """Zero every block of `lists`."""
        for each in lists:
            ids = _checked(each, self._blocks)
            self._blocks[each.group][ids] = 0


class CudaZeroing:
    """One copy of all ids, then one kernel a group."""

    def __init__(self, memory: DeviceMemory, *, groups: int) -> None:
        self._blocks = [memory.blocks(group) for group in range(groups)]
        self._kernels = [word_kernel(ZERO_SOURCE, "zero_blocks", blocks.shape[1]) for blocks in self._blocks]
        self._shipper = IdShipper()

    def zero(self, lists: Sequence[BlockList]) -> None:
        """Zero every block of `lists`."""
        columns = [_checked(each, self._blocks) for each in lists]
        total = sum(len(ids) for ids in columns)
        if not total:
            return
        shipped = self._shipper.ship(np.concatenate(columns))
        first = 0
        for each, ids in zip(lists, columns, strict=True):
            if len(ids):
                part = shipped[first : first + len(ids)]
                self._kernels[each.group].launch(len(ids), self._blocks[each.group], part)
            first += len(ids)


def _checked(each: BlockList, groups: Sequence[Any]) -> Int32s:
    """The ids, all of which exist and are not null."""
    if not 0 <= each.group < len(groups):
        raise PlanFault(f"zeroing: group {each.group} of {len(groups)}")
    ids = view(each.blocks)
    limit = len(groups[each.group])
    if len(ids) and not (ids.min() > 0 and ids.max() < limit):
        wrong = next(int(block) for block in ids if not 0 < block < limit)
        reason = "is null and never written" if wrong == 0 else f"is not among the {limit} there are"
        raise PlanFault(f"zeroing: group {each.group}: block {wrong} {reason}")
    return ids
