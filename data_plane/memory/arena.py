"""One run of bytes for all the blocks of a tier, which each group sees as an array of its own blocks."""

from typing import Any

import numpy as np

from control_plane.errors import ConfigError
from data_plane.cuda import load_cupy
from data_plane.memory.layout import ArenaLayout
from data_plane.model.base import GroupLayout


class Arena:
    """`device_blocks` parents and the null parent 0 before them: numpy bytes on a CPU, cupy bytes on CUDA.

    On a CPU the memory is taken from the system only as it is first written. Raises ConfigError when it is too much.
    """

    def __init__(self, layout: ArenaLayout, *, device_blocks: int, device: str) -> None:
        assert device_blocks >= 1, f"an arena of {device_blocks} parents"
        self.parent_bytes = layout.parent_bytes
        self.size_bytes = (device_blocks + 1) * layout.parent_bytes
        module: Any = np if device == "cpu" else load_cupy()
        try:
            self._bytes = module.zeros(self.size_bytes, dtype=np.uint8)
        except MemoryError as error:
            raise ConfigError(
                [
                    f"device_blocks={device_blocks} of {layout.parent_bytes} bytes take {self.size_bytes} bytes, more "
                    f"than the device can give: lower device_blocks or memory_bytes"
                ]
            ) from error

    def blocks(self, group: GroupLayout) -> Any:
        """The arena as `group` sees it: uint8 [(parents + 1) * packing, block_bytes]. Parent 0 is never written."""
        assert group.packing * group.block_bytes == self.parent_bytes, f"group {group.id} does not fill a parent"
        return self._bytes.reshape(-1, group.block_bytes)
