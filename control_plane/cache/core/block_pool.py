"""The pool of LCM blocks: who is empty, who is bound to which group, and which child comes next.

A group packs `packing` of its blocks into one LCM block (its parent): block `b` is child `b % packing` of parent
`b // packing`. A parent is bound to one group while any child is occupied. Parent 0 is null and never handed out.
"""

import heapq
from collections.abc import Sequence


class BlockPool:
    """Occupied and free blocks of every group over one set of parents. Knows nothing of requests or caches.

    Placement is one policy: a child of the most occupied bound parent (lowest parent, lowest child), and an empty
    parent only when no bound one has room.
    """

    def __init__(self, *, parents: int, packings: Sequence[int]) -> None:
        assert parents > 0, "a pool without blocks"
        self.parents = parents
        self.packings = tuple(packings)
        self._is_flat = all(packing == 1 for packing in packings)
        # Insertion order makes this a stack that can also lose any member: the lowest parents are taken first.
        self._empty: dict[int, None] = dict.fromkeys(range(parents, 0, -1))
        self._bound = [0] * len(packings)
        self._occupied = [0] * len(packings)
        self._free_children: list[dict[int, int]] = [{} for _ in packings]  # parent -> bit mask of free children
        self._by_occupancy: list[list[list[int]]] = [[[] for _ in range(packing)] for packing in packings]
        self._loose = [0] * len(packings)  # free children in bound parents

    @property
    def empty_count(self) -> int:
        """Parents bound to nobody."""
        return len(self._empty)

    def occupied_count(self, group: int) -> int:
        """Blocks of a group that are handed out."""
        return self._occupied[group]

    def bound_count(self, group: int) -> int:
        """Parents that a group holds."""
        return self._bound[group]

    def missing_parents(self, wanted: Sequence[int]) -> int:
        """Empty parents that lack before `wanted[group]` blocks could be taken for every group; 0: it fits."""
        if self._is_flat:
            return max(0, sum(wanted) - len(self._empty))
        parents = 0
        for group, blocks in enumerate(wanted):
            beyond = blocks - self._loose[group]
            if beyond > 0:
                parents += -(-beyond // self.packings[group])
        return max(0, parents - len(self._empty))

    def take(self, group: int, count: int) -> list[int]:
        """Occupy `count` blocks of a group. The caller has made sure that they fit."""
        self._occupied[group] += count
        if self.packings[group] == 1:
            self._bound[group] += count
            return [self._empty.popitem()[0] for _ in range(count)]
        return [self._take_child(group) for _ in range(count)]

    def give_back(self, group: int, block: int) -> None:
        """A block is free again; its parent becomes empty with its last child."""
        self._occupied[group] -= 1
        packing = self.packings[group]
        if packing == 1:
            self._bound[group] -= 1
            self._empty[block] = None
            return
        parent, child = divmod(block, packing)
        free = self._free_children[group].get(parent, 0)
        assert not free >> child & 1, f"block {block} of group {group} was given back twice"
        free |= 1 << child
        self._set_free_children(group, parent, free)

    def reoccupy(self, group: int, block: int) -> None:
        """Undo `give_back` of a block that nobody took since."""
        self._occupied[group] += 1
        packing = self.packings[group]
        if packing == 1:
            self._bound[group] += 1
            del self._empty[block]
            return
        parent, child = divmod(block, packing)
        if parent in self._empty:
            self._bind(group, parent)
        free = self._free_children[group][parent]
        assert free >> child & 1, f"block {block} of group {group} is not free"
        self._set_free_children(group, parent, free & ~(1 << child))

    def free_blocks(self, group: int) -> set[int]:
        """Every block of a group that is free inside its bound parents, for audits."""
        packing = self.packings[group]
        children = self._free_children[group].items()
        return {parent * packing + child for parent, free in children for child in range(packing) if free >> child & 1}

    def _take_child(self, group: int) -> int:
        parent = self._most_occupied(group)
        if parent is None:
            parent = next(reversed(self._empty))
            self._bind(group, parent)
        free = self._free_children[group][parent]
        lowest = free & -free
        self._set_free_children(group, parent, free ^ lowest)
        return parent * self.packings[group] + lowest.bit_length() - 1

    def _most_occupied(self, group: int) -> int | None:
        """The bound parent to fill next. Heaps keep entries that went stale; they are dropped here."""
        packing = self.packings[group]
        masks = self._free_children[group]
        for occupancy in range(packing - 1, 0, -1):
            heap = self._by_occupancy[group][occupancy]
            while heap:
                free = masks.get(heap[0])
                if free is not None and packing - free.bit_count() == occupancy:
                    return heap[0]
                heapq.heappop(heap)
        return None

    def _bind(self, group: int, parent: int) -> None:
        del self._empty[parent]
        packing = self.packings[group]
        self._free_children[group][parent] = (1 << packing) - 1
        self._loose[group] += packing
        self._bound[group] += 1

    def _set_free_children(self, group: int, parent: int, free: int) -> None:
        """Record which children are free; a full parent leaves the books, an empty one its group."""
        packing = self.packings[group]
        masks = self._free_children[group]
        self._loose[group] += free.bit_count() - masks.get(parent, 0).bit_count()
        if free == (1 << packing) - 1:
            del masks[parent]
            self._loose[group] -= packing
            self._bound[group] -= 1
            self._empty[parent] = None
            return
        if not free:
            del masks[parent]
            return
        masks[parent] = free
        heapq.heappush(self._by_occupancy[group][packing - free.bit_count()], parent)
