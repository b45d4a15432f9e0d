"""What a model sees of the device's memory: blocks and tables, group by group."""

from typing import Any

from data_plane.memory.arena import Arena
from data_plane.memory.layout import ArenaLayout
from data_plane.memory.tables import HostTables


class ArenaMemory:
    """`DeviceMemory` over an arena and the tables of its slots."""

    def __init__(self, layout: ArenaLayout, arena: Arena, tables: HostTables) -> None:
        self._blocks = [arena.blocks(group) for group in layout.groups]
        self._tables = tables

    def blocks(self, group: int) -> Any:
        """uint8 [blocks, block_bytes], block 0 null."""
        return self._blocks[group]

    def table(self, group: int) -> Any:
        """int32 [slots, blocks of the longest context]; 0 is a hole."""
        return self._tables.table(group)
