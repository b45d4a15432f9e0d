"""What every resident request needs every round, as numpy columns indexed by slot.

A steady decode round is a few vector operations over these columns; only requests that need something (a block, a
page to publish) go through the objects. `planned` counts tokens as they will be once every forward that is out has
landed, `landed` those that are known.
"""

import heapq

import numpy as np
import numpy.typing as npt

from control_plane.messages.columns import INT32, Int32s

NEVER = np.iinfo(np.int32).max


class ResidentTable:
    """The hot half of resident requests: one row a slot. `key` 0 marks a free slot."""

    def __init__(self, *, slots: int, longest_tokens: int) -> None:
        self.slots = slots
        self.key = np.zeros(slots, dtype=INT32)
        self.admitted_round = np.zeros(slots, dtype=np.int64)
        self.landed = np.zeros(slots, dtype=INT32)
        self.planned = np.zeros(slots, dtype=INT32)
        self.limit = np.zeros(slots, dtype=INT32)  # tokens at which the request is complete
        self.writable_until = np.zeros(slots, dtype=INT32)  # tokens that have a block in every group
        self.next_event_at = np.zeros(slots, dtype=INT32)  # computed tokens at which objects must look again
        self.forwards_out = np.zeros(slots, dtype=INT32)
        # Rows are committed by the operating system as they are written, not before.
        self._tokens = np.zeros((slots, longest_tokens), dtype=INT32)
        self._free = list(range(slots))

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
        return int(self.forwards_out[slot])

    def settle(self, *, key: int, round_number: int, tokens: Int32s, limit_tokens: int) -> int:
        """A request moves into the lowest free slot with its known tokens; returns the slot."""
        slot = heapq.heappop(self._free)
        self.key[slot] = key
        self.admitted_round[slot] = round_number
        self.landed[slot] = self.planned[slot] = len(tokens)
        self.limit[slot] = limit_tokens
        self.writable_until[slot] = self.next_event_at[slot] = self.forwards_out[slot] = 0
        self._tokens[slot, : len(tokens)] = tokens
        return slot

    def leave(self, slot: int) -> None:
        """The slot is free again."""
        assert self.key[slot], f"slot {slot} is free already"
        self.key[slot] = 0
        self.forwards_out[slot] = 0
        heapq.heappush(self._free, slot)

    def tokens(self, slot: int) -> Int32s:
        """A view of the known tokens of a slot: prompt, then output."""
        return self._tokens[slot, : self.landed[slot]]

    def receive(self, slot: int, tokens: Int32s, *, writable_until: int) -> None:
        """A peer sampled these tokens for a slot and wrote all rows before them; its next step looks at the objects."""
        landed = int(self.landed[slot])
        self._tokens[slot, landed : landed + len(tokens)] = tokens
        self.landed[slot] = self.planned[slot] = landed + len(tokens)
        self.writable_until[slot] = writable_until
        self.next_event_at[slot] = 0

    def land(self, slots: Int32s, counts: Int32s, tokens: Int32s) -> None:
        """Append each slot's sampled tokens (`counts` of them, laid one after the other) and count the forward in."""
        assert (self.forwards_out[slots] > 0).all(), "a result arrived for a slot with no forward out"
        self.forwards_out[slots] -= 1
        if len(tokens) == len(slots) and (counts == 1).all():
            self._tokens[slots, self.landed[slots]] = tokens
            self.landed[slots] += 1
            return
        rows = np.repeat(slots, counts)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        positions = np.repeat(self.landed[slots], counts) + np.arange(len(rows)) - starts
        self._tokens[rows, positions] = tokens
        self.landed[slots] += counts

    def owned_since(self, slots: Int32s, keys: Int32s, round_number: int) -> npt.NDArray[np.bool_]:
        """Which of these slots still belong to the same request and attempt as in that round."""
        mask: npt.NDArray[np.bool_] = (self.key[slots] == keys) & (self.admitted_round[slots] <= round_number)
        return mask
