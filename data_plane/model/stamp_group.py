"""What groups of every kind have in common in the stamp model: rows, a block table, and a memory of each slot."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from control_plane.messages.columns import Int32s
from data_plane.model.base import GroupLayout
from data_plane.model.stamp_batch import Bools, Fed, Ints
from data_plane.model.stamp_rows import CHAIN, ROW_BYTES, Chain, Words, group_origin


class StampFault(RuntimeError):
    """A row is not what, or not where, it should be. The message names slot, group and position."""


class StampGroup(ABC):
    """A view of the group's blocks as rows: uint64 [blocks, rows a block, (place, digest)].

    The group remembers the last digest that each slot wrote, so it knows when the slot's next run continues from
    another one. What is wrong is a fault when strict. Otherwise it leaves a doubt: all later tokens of the slot
    differ, until it has a new owner.
    """

    def __init__(self, index: int, layout: GroupLayout, blocks: Any, table: Any, chain: Chain, *, strict: bool) -> None:
        self.replayable = layout.replayable
        self._name = layout.id
        self._granularity = layout.block_granularity
        self._rows: Words = blocks.view(np.uint64).reshape(len(blocks), layout.block_bytes // ROW_BYTES, 2)
        self._table: Int32s = table
        self._reach = table.shape[1] * layout.block_granularity
        self._chain = chain
        self._origin = np.uint64(group_origin(index))
        self._strict = strict
        self._ends = np.zeros(len(table), dtype=np.int64)
        self._digests: Words = np.zeros(len(table), dtype=np.uint64)
        self._doubts: Words = np.zeros(len(table), dtype=np.uint64)
        self._writers = np.zeros(len(blocks), dtype=np.int64)

    @abstractmethod
    def write(self, fed: Fed) -> None:
        """Stamp what is fed. Raises StampFault rather than write into the null block or beyond the table."""

    @abstractmethod
    def read(self, fed: Fed) -> Words:
        """What the last query of each run sees: one word a run. Raises StampFault when strict and a row is wrong.

        Strict or not, every row is looked at that any query of these runs may read.
        """

    def bind(self, slot: int) -> None:
        """A slot has a new owner, which wrote nothing yet."""
        self._ends[slot] = 0
        self._doubts[slot] = 0

    def _remember(self, fed: Fed, last_digests: Words) -> None:
        self._ends[fed.slots] = fed.ends
        self._digests[fed.slots] = last_digests

    def _is_unlike(self, fed: Fed, digests: Words) -> Bools:
        """For each run whether it continues from another digest than its slot wrote last."""
        continues = (self._ends[fed.slots] == fed.begins) & (fed.begins > 0)
        unlike: Bools = continues & (self._digests[fed.slots] != digests)
        return unlike

    def _suspect(self, fed: Fed, wrong: Bools, describe: Callable[[int], str]) -> None:
        """Runs for which something is `wrong`; `describe` puts the first of them in words."""
        if not wrong.any():
            return
        if self._strict:
            raise StampFault(describe(int(np.argmax(wrong))))
        self._doubts[fed.slots[wrong]] += np.uint64(1)

    def _doubted(self, fed: Fed, seen: Words) -> Words:
        """What is seen, changed where there is doubt."""
        return seen + self._doubts[fed.slots] * np.uint64(CHAIN)

    def _check_reach(self, fed: Fed) -> None:
        if int(fed.ends.max()) > self._reach:
            run = int(np.argmax(fed.ends))
            where = f"slot {fed.slots[run]}, group {self._name!r}"
            raise StampFault(f"{where}: position {fed.ends[run] - 1} of {self._reach}")

    def _check_not_null(self, blocks: Int32s, slots: Int32s, positions: Ints) -> None:
        if not blocks.all():
            at = int(np.argmin(blocks))
            raise StampFault(f"{self._at(slots[at], positions[at])}: nothing may be written into the null block")

    def _check_single_writers(self, blocks: Int32s, writers: Ints, slots: Int32s, positions: Ints) -> None:
        """Nobody writes into a block that another writes into in this round."""
        self._writers[blocks] = writers
        last = self._writers[blocks]
        shared = last != writers
        if shared.any():
            at = int(np.argmax(shared))
            other = int(np.flatnonzero(writers == last[at])[0])
            raise StampFault(
                f"{self._at(slots[at], positions[at])}: block {blocks[at]} is written for position "
                f"{positions[other]} of slot {slots[other]} too"
            )

    def _at(self, slot: Any, position: Any) -> str:
        return f"slot {int(slot)}, group {self._name!r}, position {int(position)}"
