"""How the groups of a model share one arena: what a parent weighs, and how many of each group's blocks fill it.

A parent (an LCM block) is bound to one group at a time, so it must be a whole number of blocks of every group.
"""

from collections.abc import Sequence
from math import lcm

from msgspec import Struct
from msgspec.structs import replace

from data_plane.model.base import GroupLayout


class ArenaLayout(Struct, frozen=True):
    """`parent_bytes`, and the groups with their final `packing`."""

    parent_bytes: int
    groups: tuple[GroupLayout, ...]

    def lines(self, device_blocks: int, *, host_blocks: int = 0) -> list[str]:
        """The table that people see at startup: one line a group, then the arena, and the host tier if there is one."""
        rows = []
        for group in self.groups:
            window = f" of {group.window} tokens" if group.window else ""
            tokens = device_blocks * group.packing * group.block_granularity
            rows.append(
                f"group {group.id}: {group.kind}{window}, {len(group.layers) or 1} layers, {group.block_granularity} "
                f"tokens and {group.block_bytes} bytes a block, {group.packing} a parent; {tokens} tokens if alone"
            )
        tiers = {"arena": device_blocks} | ({"host tier": host_blocks} if host_blocks else {})
        for name, blocks in tiers.items():
            mib = (blocks + 1) * self.parent_bytes / 2**20
            rows.append(f"{name}: {blocks} parents of {self.parent_bytes} bytes and the null one, {mib:.1f} MiB")
        return rows


def plan_layout(groups: Sequence[GroupLayout]) -> ArenaLayout:
    """The smallest parent that every group fills exactly, with at least the packing that a group asks for."""
    assert groups, "a model without cache groups"
    parent_bytes = lcm(*(group.block_bytes * group.packing for group in groups))
    packed = tuple(replace(group, packing=parent_bytes // group.block_bytes) for group in groups)
    return ArenaLayout(parent_bytes, packed)
