"""A decode line that goes on as it is.

While nobody joins or leaves the line, one decode round differs from the one before it by one token a row. A run keeps
the columns that stay the same as they go over the wire, counts the steps that were planned and those that landed, and
knows at which step a row must be looked at next: so such a round costs hardly more for many rows than for one.

What it counts is missing from the columns of the ResidentTable until `settle` writes it there; the table sees to that
before anybody reads them. The plain path, which needs no run and plans the same bytes, is
`phases.schedule_decode_batch` beside `ResidentTable.land`.
"""

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from control_plane.messages.columns import Int32s, pack, repeat, view
from control_plane.scheduler.plan_build import Decodes

if TYPE_CHECKING:
    from control_plane.scheduler.resident import ResidentTable


class Due:
    """For each row the count beyond which it must be looked at; the soonest come first."""

    def __init__(self, counts: Int32s) -> None:
        order = counts.argsort(kind="stable")
        self._count_of: list[int | None] = counts.tolist()
        self._heap: list[tuple[int, int]] = list(
            zip(counts[order].tolist(), order.tolist(), strict=True)
        )  # what is in order is a heap

    @property
    def soonest(self) -> int:
        """Up to this count no row is due."""
        return self._heap[0][0]

    def take(self, count: int) -> list[int]:
        """The rows that are due at `count`. Each must be told anew by `set`."""
        rows = []
        while self._heap and self._heap[0][0] < count:
            due, row = heapq.heappop(self._heap)
            if self._count_of[row] == due:  # else it was told otherwise since
                self._count_of[row] = None
                rows.append(row)
        return rows

    def set(self, row: int, count: int) -> None:
        """The count beyond which a row is due now."""
        if self._count_of[row] != count:
            self._count_of[row] = count
            heapq.heappush(self._heap, (count, row))


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
        self._resident = resident
        self._indices = slots.astype(np.intp)  # numpy would convert the slots every time
        self._members = frozenset(slots.tolist())
        planned, landed = resident.planned[slots], resident.landed[slots]
        self._planned_at_start: list[int] = planned.tolist()
        self._landed_at_start: list[int] = landed.tolist()
        self._positions = planned - 1
        self._next_cells = resident.cells_behind(slots)
        self._settled_steps = 0
        self._settled_landed_steps = 0
        self._steps_to_the_end = int((resident.limit[slots] - planned).min())
        self._overshoot_tokens = 2 * (decode_width - 1)
        self._lacks_room = Due(resident.writable_until[slots] - planned - self._overshoot_tokens)
        self._has_event = Due(resident.next_event_at[slots] - landed)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def is_complete(self) -> bool:
        """Whether every row has a token left to make (D1)."""
        return self.steps < self._steps_to_the_end

    @property
    def just_goes_on(self) -> bool:
        """Whether the next step needs nothing but to be counted."""
        return self.is_complete and not self.needs_look

    @property
    def has_just_looked(self) -> bool:
        """Whether a row was looked at before the last step."""
        return self.last_look == self.steps - 1

    @property
    def needs_look(self) -> bool:
        """Whether a row lacks room for its next step, or completed a page or slid out of a block."""
        return self.steps > self._lacks_room.soonest or self.landed_steps > self._has_event.soonest

    def rows_to_look_at(self) -> list[int]:
        """The rows for which that is so, in order. Whoever asks looks at them, and says so to `looked_at`."""
        if not self.needs_look:
            return []
        return sorted({*self._lacks_room.take(self.steps), *self._has_event.take(self.landed_steps)})

    def looked_at(self, rows: Sequence[int]) -> None:
        """Rows were looked at before this step: the columns say anew up to where they need no look."""
        self.last_look = self.steps
        resident = self._resident
        for row in rows:
            slot = self.slots[row]
            room_tokens = int(resident.writable_until[slot]) - self._overshoot_tokens
            self._lacks_room.set(row, room_tokens - self._planned_at_start[row])
            self._has_event.set(row, int(resident.next_event_at[slot]) - self._landed_at_start[row])

    def step(self) -> Decodes:
        """One more step of every row."""
        positions = self._positions.tobytes()
        self._positions += 1
        self.steps += 1
        return Decodes(self.packed_keys, self.packed_slots, positions, len(self.slots))

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
            self._resident.count_on(self._indices, planned=planned, landed=landed)

    def unsettled(self, slot: int) -> tuple[int, int]:
        """Steps of a slot, planned and landed, that are not in the columns yet."""
        if slot not in self._members:
            return 0, 0
        return self.steps - self._settled_steps, self.landed_steps - self._settled_landed_steps
