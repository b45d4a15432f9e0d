"""How much memory a pool may take when nobody said."""

import os

from data_plane.cuda import load_cupy

# A CPU's memory belongs to other programs too; a CUDA device's is ours, less what activations need.
CPU_SHARE = 0.25
CUDA_SHARE = 0.85


def free_memory_bytes(device: str) -> int:
    """What a pool may take of the device's free memory."""
    if device == "cpu":
        return int(CPU_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    free_bytes, _ = load_cupy().cuda.runtime.memGetInfo()
    return int(CUDA_SHARE * free_bytes)
