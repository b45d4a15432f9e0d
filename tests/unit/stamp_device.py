"""A stamp model with memory and a plan writer, for the tests of each kind of cache group."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import pack
from data_plane.accesses import PlanAccesses
from data_plane.batch.rows import Rows
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import HostTables
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.model.stamp_rows import ROW
from data_plane.ops.table_edits import HostTableEdits
from data_plane.ops.zeroing import HostZeroing
from data_plane.testing.plans import PlanWriter

PROMPT = [11, 5, 200, 5, 7, 9, 1, 44, 3, 2, 8]
REACH_TOKENS = 64


class Device:
    """A stamp model and its memory, driven by a plan writer; the tokens of each request, as they were sampled."""

    def __init__(
        self,
        options: StampOptions | None = None,
        *,
        granularity: int = 4,
        blocks: int = 40,
        seed: int | None = None,
        keeps_expired: bool = False,
    ) -> None:
        self.runner = StampRunner(options, block_granularity=granularity)
        layout = plan_layout(self.runner.facts.groups)
        self.groups = layout.groups
        widths = [-(-REACH_TOKENS // group.block_granularity) for group in layout.groups]
        counts = [(blocks + 1) * group.packing for group in layout.groups]
        self._sizes: dict[str, Any] = {"slots": 8, "widths": widths, "block_counts": counts}
        self.tables = HostTables(**self._sizes)
        self.memory = ArenaMemory(layout, Arena(layout, device_blocks=blocks, device="cpu"), self.tables)
        self.zeroing = HostZeroing(self.memory, groups=len(layout.groups))
        self.runner.attach(self.memory, slots=8)
        self.writer = PlanWriter(
            layout.groups, device_blocks=blocks, slots=8, shuffle_seed=seed, keeps_expired=keeps_expired
        )
        self.tokens: dict[int, list[int]] = {}
        self.slots: dict[int, int] = {}

    def accesses(self) -> PlanAccesses:
        """What declares the accesses of plans for this device."""
        return PlanAccesses(self.groups, **self._sizes)

    def run(
        self, extends: Mapping[int, int] | None = None, *decodes: int, checkpoints: Mapping[int, int] | None = None
    ) -> None:
        self.carry_out(self.writer.plan(extends, decodes, checkpoints=checkpoints))

    def carry_out(self, plan: ExecutionPlan, *, lost: tuple[int, ...] = ()) -> None:
        """Do what a plan says. `lost` names the requests whose earlier round failed."""
        self.zeroing.zero(plan.zero)
        HostTableEdits(self.tables).apply(plan.tables)
        for binding in plan.bindings:
            self.runner.bind(binding)
        if plan.forward is not None:
            rows = Rows(plan.forward)
            rows.lost |= np.isin(rows.keys, lost)
            tokens = self.runner.run(rows)()
            for key, token in zip(rows.keys[rows.samples].tolist(), tokens.tolist(), strict=True):
                self.tokens.setdefault(key, []).append(token)

    def add(self, key: int, prompt: list[int], **options: Any) -> None:
        self.slots[key] = self.writer.add(key, prompt, **options)

    def column(self, key: int, group: int = 0) -> Any:
        """A request's row of the block table, as the model reads it; assigning to it is damage."""
        return self.tables.table(group)[self.slots[key]]

    def rows(self, key: int, column: int, group: int = 0) -> Any:
        """The rows in the block that holds this part of a request."""
        block = self.writer.blocks(key, group)[column]
        return self.memory.blocks(group).view(ROW)[block]

    def snapshot(self, key: int, length: int, group: int = 0) -> Any:
        """The state of a request after so many tokens, as (seal, position, digest)."""
        return self.rows(key, (length - 1) // self.groups[group].block_granularity, group)[0]


def served(device: Device, prompt: list[int], steps: int, *, chunk: int | None = None) -> list[int]:
    """The tokens after a prompt that is computed whole or in chunks."""
    device.add(1, prompt)
    for begin in range(0, len(prompt), chunk or len(prompt)):
        device.run({1: min(chunk or len(prompt), len(prompt) - begin)})
    for _ in range(steps - 1):
        device.run(None, 1)
    return device.tokens[1]


def with_column(plan: ExecutionPlan, name: str, values: list[int]) -> ExecutionPlan:
    """The plan with another column in its batch."""
    assert plan.forward is not None
    return replace(plan, forward=replace(plan.forward, **{name: pack(values)}))
