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
    depth: int
    victim: Victim


class EvictionOrder:
    """Cached blocks that nobody holds, oldest access first; a prefix goes from its end inward.

    Blocks enter in runs, as a request lets go of them, and are checked when they come up: a block that was taken
    again, or entered again later, is skipped. So entering and leaving cost O(1) a block.
    """

    def __init__(self, *, groups: int) -> None:
        # A heap: epoch, category, depth negated, serial, blocks.
        self._runs: list[tuple[int, Category, int, int, list[Victim]]] = []
        self._serial_of: list[dict[int, int]] = [{} for _ in range(groups)]
        self._next_serial = 1
        self.count = 0

    def enter(self, epoch: int, category: Category, blocks: list[Victim], *, depth: int) -> None:
        """Blocks became evictable; the last of them goes first.

        A closed prefix may become evictable in parts, the end of it last (a store held it): `depth` is the token at
        which the last block ends, and a deeper run goes first.
        """
        serial = self._next_serial
        self._next_serial += 1
        for group, block in blocks:
            assert block not in self._serial_of[group], f"block {block} of group {group} became evictable twice"
            self._serial_of[group][block] = serial
        heapq.heappush(self._runs, (epoch, category, -depth, serial, blocks))
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
            epoch, category, negated_depth, serial, blocks = self._runs[0]
            while blocks:
                group, block = blocks.pop()
                if self._serial_of[group].get(block) == serial:
                    self.leave(group, block)
                    return Candidate(epoch, category, -negated_depth, (group, block))
            heapq.heappop(self._runs)
        return None

    def _drop_stale_runs(self) -> None:
        """Refused admissions let blocks enter and leave again; what they leave behind must not pile up."""
        fresh = []
        for epoch, category, negated_depth, serial, blocks in self._runs:
            left = [victim for victim in blocks if self._serial_of[victim[0]].get(victim[1]) == serial]
            if left:
                fresh.append((epoch, category, negated_depth, serial, left))
        heapq.heapify(fresh)
        self._runs = fresh


def make_room(
    pool: BlockPool, order: EvictionOrder, index: PrefixIndex, wanted: Sequence[int], protected: frozenset[Victim]
) -> tuple[int, ...] | None:
    """Evict until `wanted[group]` blocks of every group can be taken; the number of blocks that went, by group.

    A minimal set: a block whose space turns out unneeded stays cached. Blocks in `protected` stay whatever happens.
    None: there is no room even so, and nothing was changed.
    """
    came_up: list[Candidate] = []
    fits = pool.missing_parents(wanted) == 0
    while not fits and (candidate := order.pop()) is not None:
        came_up.append(candidate)
        if candidate.victim not in protected:
            pool.give_back(*candidate.victim)
            fits = pool.missing_parents(wanted) == 0
    needed: dict[Victim, None] = {}
    for candidate in reversed(came_up):
        if candidate.victim in protected:
            continue
        pool.reoccupy(*candidate.victim)
        if fits and pool.missing_parents(wanted):
            pool.give_back(*candidate.victim)
            needed[candidate.victim] = None
    for candidate in came_up:
        if candidate.victim not in needed:
            # In the same order as before, and before what is left of the run that it came from.
            order.enter(candidate.epoch, candidate.category, [candidate.victim], depth=candidate.depth + 1)
    if not fits:
        return None
    evicted = [0] * len(wanted)
    for group, block in needed:
        index.remove(group, block)
        evicted[group] += 1
    return tuple(evicted)
