"""Which cached block goes first when room is needed (R4.9): deterministic, and never more than needed."""

import heapq
from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.prefix.index import PrefixIndex

Victim = tuple[int, int]  # group, block


class Category(IntEnum):
    """Within one epoch: boundaries that nobody ever hit, those that were or are worth more, then closed prefixes."""

    PROBATIONARY = 0
    ESTABLISHED = 1
    CLOSED_PREFIX = 2


class Candidate(Struct, frozen=True):
    """A block that came up, with the place it came from."""

    epoch: int
    category: Category
    victim: Victim


class EvictionOrder:
    """Cached blocks that nobody holds, oldest access first; within one release, a prefix goes from its end inward.

    Blocks enter in runs, as a request lets go of them, and are checked when they come up: a block that was taken
    again, or entered again later, is skipped. So entering and leaving cost O(1) a block.
    """

    def __init__(self, *, groups: int) -> None:
        self._runs: list[tuple[int, Category, int, list[Victim]]] = []  # heap; the int after the category is a serial
        self._serial_of: list[dict[int, int]] = [{} for _ in range(groups)]
        self._next_serial = 1
        self.count = 0

    def enter(self, epoch: int, category: Category, blocks: list[Victim]) -> None:
        """Blocks became evictable; the last of them goes first."""
        serial = self._next_serial
        self._next_serial += 1
        for group, block in blocks:
            assert block not in self._serial_of[group], f"block {block} of group {group} became evictable twice"
            self._serial_of[group][block] = serial
        heapq.heappush(self._runs, (epoch, category, serial, blocks))
        self.count += len(blocks)
        if len(self._runs) > 2 * self.count + 64:
            self._drop_stale_runs()

    def leave(self, group: int, block: int) -> bool:
        """A block is held again; False if it was not evictable."""
        if self._serial_of[group].pop(block, None) is None:
            return False
        self.count -= 1
        return True

    def __contains__(self, victim: Victim) -> bool:
        return victim[1] in self._serial_of[victim[0]]

    def pop(self) -> Candidate | None:
        """The next block to go; None: nothing is evictable."""
        while self._runs:
            epoch, category, serial, blocks = self._runs[0]
            while blocks:
                group, block = blocks.pop()
                if self._serial_of[group].get(block) == serial:
                    self.leave(group, block)
                    return Candidate(epoch, category, (group, block))
            heapq.heappop(self._runs)
        return None

    def _drop_stale_runs(self) -> None:
        """Refused admissions let blocks enter and leave again; what they leave behind must not pile up."""
        fresh = []
        for epoch, category, serial, blocks in self._runs:
            left = [victim for victim in blocks if self._serial_of[victim[0]].get(victim[1]) == serial]
            if left:
                fresh.append((epoch, category, serial, left))
        heapq.heapify(fresh)
        self._runs = fresh


def make_room(
    pool: BlockPool, order: EvictionOrder, index: PrefixIndex, wanted: Sequence[int], protected: frozenset[Victim]
) -> tuple[int, ...] | None:
    """Evict until `wanted[group]` blocks of every group can be taken; the number of blocks that went, by group.

    A minimal set: a block whose space turns out unneeded stays cached. Blocks in `protected` stay whatever happens.
    None: there is no room even so, and nothing was changed.
    """
    marked: list[Candidate] = []
    passed_over: list[Candidate] = []
    fits = pool.missing_parents(wanted) == 0
    while not fits and (candidate := order.pop()) is not None:
        if candidate.victim in protected:
            passed_over.append(candidate)
            continue
        pool.give_back(*candidate.victim)
        marked.append(candidate)
        fits = pool.missing_parents(wanted) == 0
    needed: list[Victim] = []
    kept: list[Candidate] = []
    for candidate in reversed(marked):
        pool.reoccupy(*candidate.victim)
        if fits and pool.missing_parents(wanted):
            pool.give_back(*candidate.victim)
            needed.append(candidate.victim)
        else:
            kept.append(candidate)
    # Reversed: what was to go first enters last, and the last of a run goes first.
    for candidate in [*kept, *reversed(passed_over)]:
        order.enter(candidate.epoch, candidate.category, [candidate.victim])
    if not fits:
        return None
    evicted = [0] * len(wanted)
    for group, block in needed:
        index.remove(group, block)
        evicted[group] += 1
    return tuple(evicted)
