"""Which cached block goes first when room is needed (R4.9): deterministic, and never more than needed."""

import heapq
from collections.abc import Sequence

from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.prefix.index import PrefixIndex

Victim = tuple[int, int]  # group, block


class EvictionOrder:
    """Cached blocks that nobody holds, oldest access first; within one release, a prefix goes from its end inward.

    Blocks enter in runs, as a request lets go of them, and are checked when they come up: a block that was taken
    again, or entered again later, is skipped. So entering and leaving cost O(1) a block.
    """

    def __init__(self, *, groups: int) -> None:
        self._runs: list[tuple[int, int, list[Victim]]] = []  # heap of (access epoch, serial, blocks)
        self._serial_of: list[dict[int, int]] = [{} for _ in range(groups)]
        self._next_serial = 1
        self.count = 0

    def enter(self, access_epoch: int, blocks: list[Victim]) -> None:
        """Blocks became evictable; the last of them goes first."""
        if not blocks:
            return
        serial = self._next_serial
        self._next_serial += 1
        for group, block in blocks:
            assert block not in self._serial_of[group], f"block {block} of group {group} became evictable twice"
            self._serial_of[group][block] = serial
        heapq.heappush(self._runs, (access_epoch, serial, blocks))
        self.count += len(blocks)

    def leave(self, group: int, block: int) -> bool:
        """A block is held again; False if it was not evictable."""
        if self._serial_of[group].pop(block, None) is None:
            return False
        self.count -= 1
        return True

    def __contains__(self, victim: Victim) -> bool:
        return victim[1] in self._serial_of[victim[0]]

    def pop(self) -> tuple[int, Victim] | None:
        """The next block to go, with its access epoch; None: nothing is evictable."""
        while self._runs:
            epoch, serial, blocks = self._runs[0]
            while blocks:
                group, block = blocks.pop()
                if self._serial_of[group].get(block) == serial:
                    self.leave(group, block)
                    return epoch, (group, block)
            heapq.heappop(self._runs)
        return None


def make_room(
    pool: BlockPool, order: EvictionOrder, index: PrefixIndex, wanted: Sequence[int], protected: frozenset[Victim]
) -> tuple[int, ...] | None:
    """Evict until `wanted[group]` blocks of every group can be taken; the number of blocks that went, by group.

    A minimal set: a block whose space turns out unneeded stays cached. Blocks in `protected` stay whatever happens.
    None: there is no room even so, and nothing was changed.
    """
    marked: list[tuple[int, Victim]] = []
    passed_over: list[tuple[int, Victim]] = []
    fits = pool.missing_parents(wanted) == 0
    while not fits and (candidate := order.pop()) is not None:
        if candidate[1] in protected:
            passed_over.append(candidate)
            continue
        pool.give_back(*candidate[1])
        marked.append(candidate)
        fits = pool.missing_parents(wanted) == 0
    needed: list[Victim] = []
    kept: list[tuple[int, Victim]] = []
    for candidate in reversed(marked):
        pool.reoccupy(*candidate[1])
        if fits and pool.missing_parents(wanted):
            pool.give_back(*candidate[1])
            needed.append(candidate[1])
        else:
            kept.append(candidate)
    # Reversed: what was to go first enters last, and the last of a run goes first.
    for epoch, victim in [*kept, *reversed(passed_over)]:
        order.enter(epoch, [victim])
    if not fits:
        return None
    evicted = [0] * len(wanted)
    for group, block in needed:
        index.remove(group, block)
        evicted[group] += 1
    return tuple(evicted)
