"""A decode line that goes on as it is.

While nobody joins or leaves the line, one decode round differs from the one before it by one token a row. A run keeps
the columns that stay the same as they go over the wire, counts the steps that were planned and those that landed, and
knows at which step a row must be looked at next: so such a round costs hardly more for many rows than for one.

What it counts is missing from the columns of the ResidentTable until `settle` writes it there; the table sees to that
before anybody reads them. The plain path, which needs no run and plans the same bytes, is
`phases.schedule_decode_batch` beside `ResidentTable.land`.
"""

from typing import TYPE_CHECKING

import numpy as np

from control_plane.messages import ForwardBatch
from control_plane.messages.columns import Int32s, pack, repeat, view

if TYPE_CHECKING:
    from control_plane.scheduler.resident import ResidentTable


class DecodeRun:
    """The rows of the decode line, in its order, for as long as the line stays the same.

    `steps` were planned since the run began, of which `landed_steps` have landed. `first_round` is the first round that
    it planned.
    """

    def __init__(
        self, resident: "ResidentTable", keys: Int32s, slots: Int32s, *, first_round: int, decode_width: int
    ) -> None:
        self.slots = slots
        self.first_round = first_round
        self.steps = 0
        self.landed_steps = 0
        self.last_look = -1  # the step before which a row was looked at last
        self.packed_keys = pack(keys)
        self.packed_slots = pack(slots)
        self.one_each = repeat(1, len(slots))
        self._decode_width = decode_width
        self._lengths = repeat(decode_width, len(slots))
        self._resident = resident
        self._planned_at_start = resident.planned[slots]
        self._landed_at_start = resident.landed[slots]
        self._positions = self._planned_at_start - 1
        self._next_cells = resident.cells_behind(slots)
        self._settled_steps = 0
        self._settled_landed_steps = 0
        self._steps_to_the_end = int((resident.limit[slots] - self._planned_at_start).min())
        self.watch()

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def is_complete(self) -> bool:
        """Whether every row has a token left to make (D1)."""
        return self.steps < self._steps_to_the_end

    @property
    def needs_look(self) -> bool:
        """Whether a row lacks room for its next step, or completed a page or slid out of a block."""
        return self.steps > self._quiet_steps or self.landed_steps > self._quiet_landed_steps

    def rows_to_look_at(self) -> list[int]:
        """The rows for which that is so, in order."""
        if not self.needs_look:
            return []
        is_due = (self._steps_with_room < self.steps) | (self._landed_without_event < self.landed_steps)
        return np.flatnonzero(is_due).tolist()

    def watch(self) -> None:
        """Read from the columns up to which step each row needs no look."""
        resident, slots = self._resident, self.slots
        overshoot_tokens = 2 * (self._decode_width - 1)
        self._steps_with_room = resident.writable_until[slots] - self._planned_at_start - overshoot_tokens
        self._landed_without_event = resident.next_event_at[slots] - self._landed_at_start
        self._quiet_steps = int(self._steps_with_room.min())
        self._quiet_landed_steps = int(self._landed_without_event.min())

    def looked(self) -> None:
        """Rows were looked at before this step."""
        self.last_look = self.steps
        self.watch()

    def step(self) -> bytes:
        """Plan one more step of every row. Returns the column of positions that it feeds."""
        positions = self._positions.tobytes()
        self._positions += 1
        self.steps += 1
        return positions

    def batch(self) -> ForwardBatch:
        """One more step of every row, as the whole batch of a round."""
        positions = self.step()
        return ForwardBatch(
            self.packed_keys,
            self.packed_slots,
            0,
            self._lengths,
            positions,
            b"",
            b"",
            b"",
            b"",
            self._decode_width,
        )

    def land(self, tokens: bytes) -> None:
        """The oldest step that is out sampled one token for every row (an int32 column)."""
        self._resident.write_cells(self._next_cells, view(tokens))
        self._next_cells += 1
        self.landed_steps += 1

    def settle(self) -> None:
        """Write what was counted into the columns of the table."""
        planned, landed = self.steps - self._settled_steps, self.landed_steps - self._settled_landed_steps
        if planned or landed:
            self._settled_steps, self._settled_landed_steps = self.steps, self.landed_steps
            self._resident.count_on(self.slots, planned=planned, landed=landed)

