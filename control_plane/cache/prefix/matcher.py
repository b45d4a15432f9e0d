"""Which prefix every group holds (R4.3): closed groups first, then the others within the bound that they left."""

from collections.abc import Sequence

from msgspec import Struct

from control_plane.cache.prefix.index import PrefixIndex
from control_plane.config import CacheGroupConfig


class GroupHit(Struct, frozen=True):
    """The part of a prefix hit that one group contributes: table rows from `first` on. Rows before are holes."""

    first: int
    blocks: list[int]


class PrefixHit(Struct, frozen=True):
    """A prefix that every cached group holds, and how far the closed groups alone would reach.

    `awaited` are digests whose listing could make the hit longer.
    """

    tokens: int
    closed_tokens: int
    groups: tuple[GroupHit, ...]
    awaited: tuple[bytes, ...] = ()


class PrefixMatcher:
    """Walks the index for a prompt. Claims nothing."""

    def __init__(self, index: PrefixIndex, groups: Sequence[CacheGroupConfig], *, prefix_granularity: int) -> None:
        self._index = index
        self._groups = tuple(groups)
        self._prefix_granularity = prefix_granularity
        self._closed = [g for g, group in enumerate(groups) if group.is_prefix_closed]
        self._open = [g for g, group in enumerate(groups) if not group.is_prefix_closed and not group.replayable]

    def match(self, digests: Sequence[bytes], limit_tokens: int) -> PrefixHit:
        """The longest common prefix of at most `limit_tokens`. Pages beyond the limit are never looked at (R4.2)."""
        limit_pages = min(limit_tokens // self._prefix_granularity, len(digests))
        closed_pages = self._index.leading_pages(self._closed, digests, limit_pages)
        pages = self._converge(digests, closed_pages)
        awaited = []
        if closed_pages < limit_pages:
            awaited.append(digests[closed_pages])
        if pages < closed_pages:
            awaited.append(digests[closed_pages - 1])
        hits = tuple(self._group_hit(g, digests, pages) for g in range(len(self._groups)))
        granularity = self._prefix_granularity
        # Without a closed group nothing says that more of the prefix is worth a snapshot.
        closed_tokens = closed_pages * granularity if self._closed else 0
        return PrefixHit(pages * granularity, closed_tokens, hits, tuple(awaited))

    def nothing(self) -> PrefixHit:
        """The hit of a prompt that shares nothing."""
        return PrefixHit(0, 0, tuple(GroupHit(0, []) for _ in self._groups))

    def _converge(self, digests: Sequence[bytes], pages: int) -> int:
        """Lower the bound until every open group supports it; each may lower it for the others."""
        while True:
            lowest = pages
            for g in self._open:
                lowest = self._highest_boundary(g, digests, lowest)
            if lowest == pages:
                return pages
            pages = lowest

    def _highest_boundary(self, g: int, digests: Sequence[bytes], pages: int) -> int:
        """The highest page count up to `pages` whose lookback the group holds: walked down a block at a time."""
        per_page = self._index.blocks_per_page[g]
        lookback = self._groups[g].lookback_blocks
        boundary = pages
        row = boundary * per_page
        while boundary:
            row -= 1
            if row < 0 or row < boundary * per_page - lookback:
                return boundary
            page, ordinal = divmod(row, per_page)
            if self._index.find(g, ordinal, digests[page]) is None:
                # Every boundary that reads this row is out; the next candidate ends at or before it.
                boundary = row // per_page
                row = boundary * per_page
        return 0

    def _group_hit(self, g: int, digests: Sequence[bytes], pages: int) -> GroupHit:
        group, per_page = self._groups[g], self._index.blocks_per_page[g]
        if group.replayable:
            return GroupHit(0, [])
        end = pages * per_page
        first = 0 if group.is_prefix_closed else max(0, end - group.lookback_blocks)
        return GroupHit(first, self._index.blocks_between(g, digests, first, end))
