"""Who holds which block: references, and what becomes of a block that nobody holds any more."""

from collections.abc import Sequence

import numpy as np

from control_plane.cache.coordinator.demand import BoundaryKind
from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.core.block_table import BlockTables
from control_plane.cache.prefix.eviction import Category, EvictionOrder, Victim
from control_plane.cache.prefix.index import PrefixIndex
from control_plane.config import CacheGroupConfig
from control_plane.messages.columns import Int32s


class Holdings:
    """Reference counts of every block, and of cached ones their last access and what they are worth.

    A block without references is free, or cached and in the order of eviction.
    """

    def __init__(
        self,
        pool: BlockPool,
        index: PrefixIndex,
        order: EvictionOrder,
        groups: Sequence[CacheGroupConfig],
        *,
        parents: int,
    ) -> None:
        self._pool = pool
        self._index = index
        self._order = order
        self._groups = tuple(groups)
        self._is_closed = [group.is_prefix_closed for group in groups]
        sizes = [(parents + 1) * group.packing for group in groups]
        self._references = [np.zeros(size, dtype=np.int32) for size in sizes]
        self._epochs = [np.zeros(size, dtype=np.int64) for size in sizes]
        self._ends = [np.zeros(size, dtype=np.int32) for size in sizes]
        self._is_established = [np.zeros(size, dtype=np.bool_) for size in sizes]
        # The same memory for one block at a time: a memoryview gives and takes a number in half of numpy's time.
        self._references_of = [column.data for column in self._references]
        self._epoch_of = [column.data for column in self._epochs]
        self._end_of = [column.data for column in self._ends]
        self._established = [column.data for column in self._is_established]

    def is_held(self, group: int, block: int) -> bool:
        """Whether anybody holds a block."""
        return self._references_of[group][block] > 0

    def take(self, group: int, count: int) -> list[int]:
        """New blocks from the pool, held once. The caller has made sure that they fit."""
        blocks = self._pool.take(group, count)
        self._references[group][blocks] = 1
        return blocks

    def acquire(self, group: int, blocks: Sequence[int], epoch: int) -> None:
        """Hold cached blocks that a prefix hit named; they are of this epoch now, and proved their worth."""
        if not blocks:
            return
        self._references[group][blocks] += 1
        self._epochs[group][blocks] = epoch
        self._is_established[group][blocks] = True
        for block in blocks:
            self._order.leave(group, block)

    def share(self, group: int, block: int) -> None:
        """Hold one more time a cached block, whoever holds it already."""
        self._references_of[group][block] += 1
        self._order.leave(group, block)

    def worth(self, group: int, block: int) -> tuple[int, Category]:
        """How young a cached block is, and what it is worth beside others of its age."""
        return self._epoch_of[group][block], self._category(group, block)

    def hold_again(self, group: int, block: int) -> None:
        """Undo the release of one block that nobody took since."""
        self._references_of[group][block] += 1
        if self._references_of[group][block] == 1 and not self._order.leave(group, block):
            self._pool.reoccupy(group, block)

    def listed(self, group: int, block: int, *, epoch: int, kind: BoundaryKind) -> None:
        """A listed block is named again by somebody of this epoch."""
        # Never older than what follows it, or a page could be evicted before its successors.
        self._epoch_of[group][block] = max(self._epoch_of[group][block], epoch)
        self._established[group][block] |= kind > BoundaryKind.CHUNK

    def first_listed(self, group: int, block: int, *, epoch: int, kind: BoundaryKind, end: int) -> None:
        """A block gets its first name: whatever it was before does not count. What it holds ends at token `end`."""
        self._end_of[group][block] = end
        self._epoch_of[group][block] = epoch
        self._established[group][block] = kind > BoundaryKind.CHUNK

    def first_listed_together(self, group: int, blocks: Int32s, *, epoch: int, ends: Int32s) -> None:
        """As `first_listed`, for the blocks of whole pages of a closed group, whose kind says nothing."""
        indices = blocks.astype(np.intp)  # numpy would convert them every time
        self._ends[group][indices] = ends
        self._epochs[group][indices] = epoch
        self._is_established[group][indices] = False

    def release(self, blocks: Sequence[Victim]) -> int:
        """Let go of blocks, in the order of a table. Cached ones become evictable, the last of them first.

        Returns how many nobody holds now.
        """
        unheld = 0
        runs: dict[tuple[int, Category], list[Victim]] = {}
        run: list[Victim] = []
        last_rank = None
        for victim in blocks:
            group, block = victim
            references = self._references_of[group]
            left = references[block] - 1
            assert left >= 0, f"block {block} of group {group} was let go of once too often"
            references[block] = left
            if left:
                continue
            unheld += 1
            if self._index.is_cached(group, block):
                # Where requests shared pages, those of a table are of several epochs, the later ones in front.
                rank = self.worth(group, block)
                if rank != last_rank:
                    run, last_rank = runs.setdefault(rank, []), rank
                run.append(victim)
            else:
                self._pool.give_back(group, block)
        for (epoch, category), run in runs.items():
            self._order.enter(epoch, category, run, depth=self._depth(category, run))
        return unheld

    def releasable_parents(self, group: int, blocks: Sequence[int]) -> int:
        """Parents in which the holder of `blocks` holds everything that is held."""
        references, packing = self._references[group], self._groups[group].packing
        own = np.array(blocks, dtype=np.int64)
        own = own[references[own] == 1]
        if packing == 1:
            return len(own)
        parents, counts = np.unique(own // packing, return_counts=True)
        held = (references.reshape(-1, packing)[parents] > 0).sum(axis=1)
        return int((held == counts).sum())

    def references(self, group: int) -> Int32s:
        """How often each block of a group is held, as of now."""
        return self._references[group].copy()

    def held_parents(self, group: int) -> int:
        """LCM blocks of a group with a held child."""
        return int((self._references[group].reshape(-1, self._groups[group].packing) > 0).any(axis=1).sum())

    def audit(self, tables: BlockTables, pinned: Sequence[Victim]) -> list[str]:
        """Every way in which tables, pins, references, index, order and pool disagree."""
        problems = []
        for index, (group, references) in enumerate(zip(self._groups, self._references, strict=True)):
            held = np.zeros_like(references)
            for slot in range(tables.slot_count):
                blocks = tables.blocks(slot, index)
                np.add.at(held, blocks[blocks > 0], 1)
            for block in (block for pinned_group, block in pinned if pinned_group == index):
                held[block] += 1
            for block in np.flatnonzero(held != references).tolist():
                problems.append(
                    f"group {index} block {block}: {held[block]} tables and copies hold it, "
                    f"{references[block]} references count"
                )
            cached = self._index.cached_blocks(index)
            for block in cached:
                if (references[block] == 0) != ((index, block) in self._order):
                    problems.append(f"group {index} block {block}: cached, {references[block]} references, wrong order")
            occupied = self._pool.occupied_count(index)
            in_use = len(set(np.flatnonzero(references).tolist()) | set(cached))
            if in_use != occupied:
                problems.append(f"group {index}: {in_use} blocks in use, {occupied} handed out")
            if references[: group.packing].any():
                problems.append(f"group {index}: the null block is referenced")
            loose = self._pool.bound_count(index) * group.packing - occupied
            if len(self._pool.free_blocks(index)) != loose:
                problems.append(f"group {index}: {len(self._pool.free_blocks(index))} loose blocks, {loose} expected")
        bound = sum(self._pool.bound_count(index) for index in range(len(self._groups)))
        if bound + self._pool.empty_count != self._pool.parents:
            problems.append(f"{bound} bound + {self._pool.empty_count} empty LCM blocks of {self._pool.parents}")
        return problems

    def _depth(self, category: Category, run: Sequence[Victim]) -> int:
        """How deep in a prefix a run ends; the others of its rank have no order by that."""
        if category is not Category.CLOSED_PREFIX:
            return 0
        return max(self._end_of[group][block] for group, block in run)

    def _category(self, group: int, block: int) -> Category:
        if self._is_closed[group]:
            return Category.CLOSED_PREFIX
        return Category.ESTABLISHED if self._established[group][block] else Category.PROBATIONARY
