"""All cache groups as one: probe a prefix, admit a step, publish what was computed, free a request.

An admission is atomic (R3.1): it publishes the pages that the request completed (R3.2), then takes new blocks, evicting
cached ones only as far as needed; or it refuses and leaves every table, index and counter as it was.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.demand import (
    NO_PROGRESS,
    CacheProgress,
    Granted,
    GroupDemand,
    Refused,
    RequestProgress,
)
from control_plane.cache.coordinator.eviction import EvictionOrder, Victim, make_room
from control_plane.cache.core.block_pool import BlockPool
from control_plane.cache.core.block_table import BlockTables
from control_plane.cache.prefix.index import PrefixHit, PrefixIndex
from control_plane.config import SchedulerConfig
from control_plane.messages.columns import Int32s


class _Duplicate(Struct, frozen=True):
    """A table row whose content is listed under another block."""

    group: int
    position: int
    own: int
    canonical: int


class CacheCoordinator:
    """Owner of the pool, the tables, the references and the prefix index of the device tier."""

    def __init__(self, config: SchedulerConfig, *, longest_tokens: int) -> None:
        granularities = [group.block_granularity for group in config.groups]
        packings = [group.packing for group in config.groups]
        self.granularities = tuple(granularities)
        self.pool = BlockPool(parents=config.device_blocks, packings=packings)
        self.tables = BlockTables(
            slots=config.max_batch_size, granularities=granularities, longest_tokens=longest_tokens
        )
        self.index = PrefixIndex(granularities=granularities, prefix_granularity=config.prefix_granularity)
        self._prefix_granularity = config.prefix_granularity
        self._epoch = 0  # rises with every request that is admitted
        self._epochs = [np.zeros((config.device_blocks + 1) * packing, dtype=np.int64) for packing in packings]
        self._order = EvictionOrder(groups=len(granularities))
        self._references = [np.zeros((config.device_blocks + 1) * packing, dtype=np.int32) for packing in packings]
        self._packings = tuple(packings)
        self.freed_count = 0  # rises whenever room appears; a refusal stands while it does not

    @property
    def available_blocks(self) -> int:
        """LCM blocks that could be had at most: empty ones, and those that evicting everything unheld would empty.

        Exact where every packing is 1, an upper bound elsewhere.
        """
        return self.pool.empty_count + self._order.count

    def probe_prefix(self, digests: Sequence[bytes], limit_tokens: int) -> PrefixHit:
        """The longest cached prefix within the limit. Claims nothing."""
        return self.index.match(digests, limit_tokens)

    def admit(
        self,
        slot: int,
        demands: Sequence[GroupDemand],
        *,
        hit: PrefixHit | None = None,
        progress: RequestProgress = NO_PROGRESS,
    ) -> Granted | Refused:
        """Give a slot the blocks of `demands`, its `hit` in front of an empty table; or refuse and change nothing."""
        wanted = []
        for group, demand in enumerate(demands):
            held = self.tables.held(slot, group) + (len(hit.blocks[group]) if hit else 0)
            wanted.append(max(0, demand.blocks(self.granularities[group]) - held))
        duplicates = self._duplicates(slot, progress)
        for duplicate in duplicates:
            self.pool.give_back(duplicate.group, duplicate.own)
        evicted = self._secure(wanted, hit)
        if evicted is None:
            for duplicate in reversed(duplicates):
                self.pool.reoccupy(duplicate.group, duplicate.own)
            return self._refusal(wanted, hit)
        for duplicate in duplicates:
            self._point_at_canonical(slot, duplicate)
        if hit:
            self._claim(slot, hit)
            after = CacheProgress(hit.tokens // self._prefix_granularity, self._epoch)
        else:
            after = CacheProgress(self._publish(slot, progress), progress.access_epoch)
        fresh = []
        for group, count in enumerate(wanted):
            blocks = self.pool.take(group, count) if count else []
            if blocks:
                self._references[group][blocks] = 1
                self.tables.append(slot, group, blocks)
            fresh.append(blocks)
        return Granted(tuple(fresh), evicted, after)

    def publish(self, slot: int, progress: RequestProgress) -> int:
        """Publish completed pages outside an admission: at a finish or a retraction. Returns the pages published."""
        return self._publish(slot, progress)

    def free(self, slot: int) -> int:
        """Give back everything that a slot holds; what is cached stays so, evictable. Returns the blocks let go."""
        let_go = 0
        cached: list[tuple[int, int, int]] = []
        for group in range(len(self.granularities)):
            blocks = self.tables.blocks(slot, group)
            references = self._references[group]
            references[blocks] -= 1
            unheld = np.flatnonzero(references[blocks] == 0)
            for position in unheld.tolist():
                block = int(blocks[position])
                if self.index.is_cached(group, block):
                    cached.append((position, -group, block))
                else:
                    self.pool.give_back(group, block)
            let_go += len(unheld)
        self.tables.clear(slot)
        if len(self.granularities) > 1:
            cached.sort()  # the last row goes first; of equal rows, the one of the earlier group
        # Where requests shared pages, those of a row are of several epochs, the later ones in front.
        runs: dict[int, list[Victim]] = {}
        for _, group, block in cached:
            runs.setdefault(int(self._epochs[-group][block]), []).append((-group, block))
        for epoch, victims in runs.items():
            self._order.enter(epoch, victims)
        self.freed_count += 1
        return let_go

    def tail_blocks(self, slot: int, begin: int) -> list[Int32s]:
        """The blocks of a slot, by group, that hold tokens from `begin` on."""
        return [
            self.tables.blocks(slot, group)[begin // granularity :].copy()
            for group, granularity in enumerate(self.granularities)
        ]

    def discard(self, group: int, blocks: Int32s) -> Int32s:
        """Unlist those of `blocks` that are cached: what they should hold was never written. Returns them."""
        tainted = [block for block in blocks.tolist() if block and self.index.is_cached(group, block)]
        for block in tainted:
            self.index.remove(group, block)
            if self._order.leave(group, block):
                self.pool.give_back(group, block)
                self.freed_count += 1
        return np.array(tainted, dtype=np.int32)

    def counts(self) -> tuple[int, int, int]:
        """LCM blocks that requests hold, that hold only cached blocks, and that are empty."""
        held = {
            block // self._packings[group]
            for group, references in enumerate(self._references)
            for block in np.flatnonzero(references).tolist()
        }
        bound = self.pool.parents - self.pool.empty_count
        return len(held), bound - len(held), self.pool.empty_count

    def audit(self) -> list[str]:
        """Every way in which the books do not add up; empty when all is well. Costs as much as the pool is large."""
        problems = []
        for group, references in enumerate(self._references):
            held = np.zeros_like(references)
            for slot in range(self.tables.slot_count):
                blocks = self.tables.blocks(slot, group)
                np.add.at(held, blocks[blocks > 0], 1)
            for block in np.flatnonzero(held != references).tolist():
                problems.append(
                    f"group {group} block {block}: {held[block]} tables name it, {references[block]} references count"
                )
            cached = self.index.cached_blocks(group)
            for block in cached:
                if (references[block] == 0) != ((group, block) in self._order):
                    problems.append(f"group {group} block {block}: cached, {references[block]} references, wrong order")
            in_use = len(set(np.flatnonzero(references).tolist()) | set(cached))
            if in_use != self.pool.occupied_count(group):
                problems.append(f"group {group}: {in_use} blocks in use, {self.pool.occupied_count(group)} handed out")
            if references[: self._packings[group]].any():
                problems.append(f"group {group}: the null block is referenced")
            free = self.pool.free_blocks(group)
            expected = self.pool.bound_count(group) * self._packings[group] - self.pool.occupied_count(group)
            if len(free) != expected:
                problems.append(f"group {group}: {len(free)} loose blocks, {expected} expected")
        bound = sum(self.pool.bound_count(group) for group in range(len(self._packings)))
        if bound + self.pool.empty_count != self.pool.parents:
            problems.append(f"{bound} bound + {self.pool.empty_count} empty LCM blocks of {self.pool.parents}")
        return problems

    def clear_cache(self) -> int:
        """Drop every cached block that nobody holds; returns how many."""
        dropped = 0
        while (candidate := self._order.pop()) is not None:
            group, block = candidate[1]
            self.index.remove(group, block)
            self.pool.give_back(group, block)
            dropped += 1
        self.freed_count += 1
        return dropped

    def _secure(self, wanted: list[int], hit: PrefixHit | None) -> tuple[int, ...] | None:
        """Make sure that `wanted` can be taken beside the hit; None if not."""
        if not self.pool.missing_parents(wanted):
            return (0,) * len(wanted)
        hit_blocks = hit.blocks if hit else ()
        protected = frozenset((group, block) for group, blocks in enumerate(hit_blocks) for block in blocks)
        if all(packing == 1 for packing in self._packings):
            unheld_hits = sum(victim in self._order for victim in protected)
            if sum(wanted) > self.available_blocks - unheld_hits:
                return None
        return make_room(self.pool, self._order, self.index, wanted, protected)

    def _duplicates(self, slot: int, progress: RequestProgress) -> list["_Duplicate"]:
        """Blocks of a slot that publication will replace by ones that somebody holds: their room counts (R3.2).

        A listed block that nobody holds is left out. It may have to be evicted, and then the slot's own takes its name.
        """
        duplicates = []
        for page in range(progress.published_pages, progress.completed_pages):
            digest = progress.digests[page]
            for group, count in enumerate(self.index.blocks_per_page):
                for ordinal in range(count):
                    canonical = self.index.find(group, ordinal, digest)
                    if canonical is not None and self._references[group][canonical]:
                        position = page * count + ordinal
                        own = int(self.tables.blocks(slot, group)[position])
                        if own != canonical:
                            duplicates.append(_Duplicate(group, position, own, canonical))
        return duplicates

    def _refusal(self, wanted: list[int], hit: PrefixHit | None) -> Refused:
        group = max(range(len(wanted)), key=lambda g: wanted[g])
        own = sum((g, b) in self._order for g, blocks in enumerate(hit.blocks) for b in blocks) if hit else 0
        # Where several blocks share a parent, no simple number tells when the demand may fit: ask after every change.
        needs_blocks = sum(wanted) if all(packing == 1 for packing in self._packings) else 0
        return Refused(group, wanted[group], self.available_blocks - own, needs_blocks)

    def _claim(self, slot: int, hit: PrefixHit) -> None:
        """Hold the blocks of a hit and put them in front of an empty table. A new epoch begins, and they are of it."""
        self._epoch += 1
        for group, blocks in enumerate(hit.blocks):
            if not blocks:
                continue
            assert self.tables.held(slot, group) == 0, f"slot {slot} already holds blocks"
            self._references[group][blocks] += 1
            self._epochs[group][blocks] = self._epoch
            for block in blocks:
                self._order.leave(group, block)
            self.tables.append(slot, group, blocks)

    def _publish(self, slot: int, progress: RequestProgress) -> int:
        """List the newly completed pages; a piece that is listed already replaces the slot's own block (R4.10)."""
        for page in range(progress.published_pages, progress.completed_pages):
            digest = progress.digests[page]
            for group, count in enumerate(self.index.blocks_per_page):
                row = self.tables.blocks(slot, group)
                for ordinal in range(count):
                    position = page * count + ordinal
                    own = int(row[position])
                    canonical = self.index.find(group, ordinal, digest)
                    if canonical is None:
                        self.index.insert(group, ordinal, digest, own)
                    elif canonical != own:
                        self.pool.give_back(group, own)
                        self._point_at_canonical(slot, _Duplicate(group, position, own, canonical))
                    block = own if canonical is None else canonical
                    # Never younger than what follows it, or a page could be evicted before its successors.
                    self._epochs[group][block] = max(self._epochs[group][block], progress.access_epoch)
        return max(progress.published_pages, progress.completed_pages)

    def _point_at_canonical(self, slot: int, duplicate: "_Duplicate") -> None:
        """Hold the canonical block instead of the slot's own, which is given back already."""
        references = self._references[duplicate.group]
        references[duplicate.canonical] += 1
        self._order.leave(duplicate.group, duplicate.canonical)
        self.tables.replace(slot, duplicate.group, duplicate.position, duplicate.canonical)
        references[duplicate.own] -= 1
        assert references[duplicate.own] == 0, f"{duplicate} was not published and yet shared"
        self.freed_count += 1
