"""The host tier's blocks: one run of bytes that outlives the device's blocks, seen by each group as its own."""

from typing import Any

import numpy.typing as npt

from control_plane.errors import ConfigError
from data_plane.memory.layout import ArenaLayout
from data_plane.memory.pinned import host_bytes


class HostPages:
    """`host_blocks` parents and the null parent 0 before them, laid out as the device's arena is.

    Page-locked with CUDA. On a CPU the memory is taken from the system only as it is first written. Raises ConfigError
    when it is too much.
    """

    def __init__(self, layout: ArenaLayout, *, host_blocks: int, device: str) -> None:
        assert host_blocks >= 1, f"a host tier of {host_blocks} parents"
        self._layout = layout
        self.size_bytes = (host_blocks + 1) * layout.parent_bytes
        try:
            self._bytes = host_bytes(self.size_bytes, device=device)
        except (MemoryError, RuntimeError) as error:  # CUDA's errors are of the second kind
            raise ConfigError(
                [
                    f"host_blocks={host_blocks} of {layout.parent_bytes} bytes take {self.size_bytes} bytes, more than "
                    f"the host can give: lower host_blocks"
                ]
            ) from error

    def blocks(self, group: int) -> npt.NDArray[Any]:
        """The pages as `group` sees them: uint8 [(parents + 1) * packing, block_bytes]. Parent 0 is never written."""
        return self._bytes.reshape(-1, self._layout.groups[group].block_bytes)
