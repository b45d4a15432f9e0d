"""How large a pool to take when nobody said."""

import os
from math import ceil

from data_plane.cuda import load_cupy
from data_plane.memory.layout import ArenaLayout

# A CPU's memory belongs to other programs too; a CUDA device's is ours, less what activations need.
CPU_SHARE = 0.25
CUDA_SHARE = 0.85


def free_memory_bytes(device: str) -> int:
    """What a pool may take of the device's free memory."""
    if device == "cpu":
        return int(CPU_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    free_bytes, _ = load_cupy().cuda.runtime.memGetInfo()
    return int(CUDA_SHARE * free_bytes)


def choose_device_blocks(layout: ArenaLayout, *, slots: int, context_tokens: int, free_bytes: int) -> int:
    """Parents for every slot at the longest context, as far as `free_bytes` go; at least 1."""
    per_slot = sum(ceil(context_tokens / (group.block_granularity * group.packing)) for group in layout.groups)
    return max(1, min(slots * per_slot, free_bytes // layout.parent_bytes - 1))
