"""What every resident request needs every round, as numpy columns indexed by slot.

A steady decode round is a few vector operations over these columns; only requests that need something (a block, a
page to publish) go through the objects. `planned` counts tokens as they will be once every forward that is out has
landed, `landed` those that are known, `forwards_out` what is between them.

While the same slots decode on and on, a `DecodeRun` counts for them all at once, and these three columns are brought
up to date when somebody asks for one.
"""

import heapq

import numpy as np
import numpy.typing as npt

from control_plane.messages.columns import INT32, Int32s
from control_plane.scheduler.decode_run import DecodeRun

NEVER = np.iinfo(np.int32).max


class ResidentTable:
    """The hot half of resident requests: one row a slot. `key` 0 marks a free slot."""

    def __init__(self, *, slots: int, longest_tokens: int, decode_width: int = 1, has_runs: bool = True) -> None:
        """Without `has_runs` every decode takes the plain path: for tests, which compare the two."""
        self.slots = slots
        self.run: DecodeRun | None = None
        self._decode_width = decode_width
        self._has_runs = has_runs
        self._line_before: Int32s | None = None
        self.key = np.zeros(slots, dtype=INT32)
        self.admitted_round = np.zeros(slots, dtype=np.int64)
        self._landed = np.zeros(slots, dtype=INT32)
        self._planned = np.zeros(slots, dtype=INT32)
        self._forwards_out = np.zeros(slots, dtype=INT32)
        self.limit = np.zeros(slots, dtype=INT32)  # tokens at which the request is complete
        self.writable_until = np.zeros(slots, dtype=INT32)  # tokens that have a block in every group
        self.next_event_at = np.zeros(slots, dtype=INT32)  # computed tokens at which objects must look again
        self._steps_alone = np.zeros(slots, dtype=np.bool_)
        self._steps_alone_count = 0  # slots of which that holds: usually none, and then nobody looks
        # Rows are committed by the operating system as they are written, not before.
        self._tokens = np.zeros((slots, longest_tokens), dtype=INT32)
        self._cells = self._tokens.reshape(-1)
        self._free = list(range(slots))

    @property
    def landed(self) -> Int32s:
        """Tokens that are known, by slot."""
        self._catch_up()
        return self._landed

    @property
    def planned(self) -> Int32s:
        """Tokens that will be known once all that is out has landed, by slot."""
        self._catch_up()
        return self._planned

    @property
    def forwards_out(self) -> Int32s:
        """Forwards that are out against a slot's pages, by slot."""
        self._catch_up()
        return self._forwards_out

    @property
    def has_free_slot(self) -> bool:
        """Whether one more request could become resident."""
        return bool(self._free)

    @property
    def count(self) -> int:
        """How many requests are resident."""
        return self.slots - len(self._free)

    @property
    def next_slot(self) -> int:
        """The slot that the next request gets: the lowest free one."""
        return self._free[0]

    def results_in_flight(self, slot: int) -> int:
        """Forwards that are out against a slot's pages."""
        planned, landed = self._counted_by_run(slot)
        return int(self._forwards_out[slot]) + planned - landed

    def known_tokens(self, slot: int) -> int:
        """Tokens of a slot that have landed."""
        return int(self._landed[slot]) + self._counted_by_run(slot)[1]

    def planned_tokens(self, slot: int) -> int:
        """Tokens of a slot once all that is out has landed."""
        return int(self._planned[slot]) + self._counted_by_run(slot)[0]

    def run_of(self, keys: Int32s, slots: Int32s, *, round_number: int) -> DecodeRun | None:
        """The run of a decode line, which began, if it has one by now, the last time that these slots were asked for.

        None: this is the first round of a line, or it has no runs, or one of its rows has no step left to make.
        """
        run = self.run
        if run is not None and run.slots is slots and not self._steps_alone_count:
            return run if run.is_complete else None
        self.end_run()
        if self._steps_alone_count:
            return None
        is_new, self._line_before = slots is not self._line_before, slots
        if is_new or not self._has_runs:
            return None
        run = DecodeRun(self, keys, slots, first_round=round_number, decode_width=self._decode_width)
        if not run.is_complete:
            return None
        self.run = run
        return run

    def end_run(self) -> None:
        """Columns change otherwise than by steps of the run."""
        self._catch_up()
        self.run = None

    def settle(
        self, *, key: int, round_number: int, tokens: Int32s, limit_tokens: int, steps_alone: bool = False
    ) -> int:
        """A request moves into the lowest free slot with its known tokens; returns the slot.

        `steps_alone`: no step of it is planned while another one is out.
        """
        slot = heapq.heappop(self._free)
        self.key[slot] = key
        self.admitted_round[slot] = round_number
        self.landed[slot] = self.planned[slot] = len(tokens)
        self.limit[slot] = limit_tokens
        self.writable_until[slot] = self.next_event_at[slot] = self.forwards_out[slot] = 0
        self._tokens[slot, : len(tokens)] = tokens
        self._steps_alone[slot] = steps_alone
        self._steps_alone_count += steps_alone
        return slot

    def leave(self, slot: int) -> None:
        """The slot is free again."""
        assert self.key[slot], f"slot {slot} is free already"
        self.end_run()
        self.key[slot] = 0
        self.forwards_out[slot] = 0
        self._steps_alone_count -= int(self._steps_alone[slot])
        self._steps_alone[slot] = False
        heapq.heappush(self._free, slot)

    def tokens(self, slot: int) -> Int32s:
        """A view of the known tokens of a slot: prompt, then output."""
        return self._tokens[slot, : self.known_tokens(slot)]

    def cells_behind(self, slots: Int32s) -> npt.NDArray[np.int64]:
        """Where the next token of each slot goes in the buffer of all slots."""
        return slots.astype(np.int64) * self._tokens.shape[1] + self.landed[slots]

    def write_cells(self, cells: npt.NDArray[np.int64], tokens: Int32s) -> None:
        """One token each into cells of that buffer; who counts them says so to `count_on`."""
        self._cells[cells] = tokens

    def count_on(self, slots: npt.NDArray[np.intp], *, planned: int, landed: int) -> None:
        """So many steps of a run were planned for each of these slots, and so many have landed."""
        self._planned[slots] += planned
        self._landed[slots] += landed
        if planned != landed:
            self._forwards_out[slots] += planned - landed

    def has_step_left(self, slots: Int32s) -> npt.NDArray[np.bool_]:
        """Which of these slots have a token left to make: never a step beyond the last one (D1).

        Of those that step alone only the ones with nothing out: their next step needs the token before it.
        """
        has_left: npt.NDArray[np.bool_] = self.planned[slots] < self.limit[slots]
        if self._steps_alone_count:
            has_left &= ~(self._steps_alone[slots] & (self.forwards_out[slots] > 0))
        return has_left

    def rows_to_look_at(self, slots: Int32s) -> list[int]:
        """Which of these slots, by place, cannot just go on: they lack room for the next step or have something to say.

        A step may write as many rows as it is wide, behind as many that a step in flight may add.
        """
        lacks_room = self.planned[slots] + 2 * (self._decode_width - 1) > self.writable_until[slots]
        has_event = self.landed[slots] > self.next_event_at[slots]
        return np.flatnonzero((lacks_room | has_event) & self.has_step_left(slots)).tolist()

    def plan_step(self, slots: Int32s) -> Int32s:
        """One more decode step of each slot is on its way. Returns the positions of the tokens that it feeds."""
        self.end_run()
        positions: Int32s = self._planned[slots] - 1
        self._planned[slots] += 1
        self._forwards_out[slots] += 1
        return positions

    def receive(self, slot: int, tokens: Int32s, *, writable_until: int) -> None:
        """A peer sampled these tokens for a slot and wrote all rows before them; its next step looks at the objects."""
        landed = int(self.landed[slot])
        self._tokens[slot, landed : landed + len(tokens)] = tokens
        self.landed[slot] = self.planned[slot] = landed + len(tokens)
        self.writable_until[slot] = writable_until
        self.next_event_at[slot] = 0

    def land(self, slots: Int32s, counts: Int32s, tokens: Int32s) -> None:
        """Append each slot's sampled tokens (`counts` of them, laid one after the other) and count the forward in."""
        self.end_run()
        landed = self._landed
        assert (self._forwards_out[slots] > 0).all(), "a result arrived for a slot with no forward out"
        self._forwards_out[slots] -= 1
        if len(tokens) == len(slots) and (counts == 1).all():
            self._tokens[slots, landed[slots]] = tokens
            landed[slots] += 1
            return
        rows = np.repeat(slots, counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        positions = np.repeat(landed[slots], counts) + np.arange(len(rows)) - starts
        self._tokens[rows, positions] = tokens
        landed[slots] += counts

    def owned_since(self, slots: Int32s, keys: Int32s, round_number: int) -> npt.NDArray[np.bool_]:
        """Which of these slots still belong to the same request and attempt as in that round."""
        mask: npt.NDArray[np.bool_] = (self.key[slots] == keys) & (self.admitted_round[slots] <= round_number)
        return mask

    def _counted_by_run(self, slot: int) -> tuple[int, int]:
        """Steps of a slot, planned and landed, that the run has not written into the columns."""
        return (0, 0) if self.run is None else self.run.unsettled(slot)

    def _catch_up(self) -> None:
        if self.run is not None:
            self.run.settle()
