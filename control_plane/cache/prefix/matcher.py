"""Which prefix every group holds (R4.3): closed groups first, then the others within the bound that they left.

A piece that the device lacks may be on the host: then the hit has a hole there that a load-back fills (R4.4).
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from control_plane.cache.prefix.index import PrefixIndex
from control_plane.config import CacheGroupConfig


class LowerTier(Protocol):
    """Where pieces are that the device lacks."""

    def find(self, group: int, ordinal: int, digest: bytes) -> int | None:
        """The block there that holds this piece."""
        ...


class GroupHit(Struct, frozen=True):
    """The part of a prefix hit that one group contributes: table rows from `first` on. Rows before are holes.

    `blocks` has 0 where the piece is on the host: `loads` says where, as (index in `blocks`, host block).
    """

    first: int
    blocks: list[int]
    loads: tuple[tuple[int, int], ...] = ()

    @property
    def device_blocks(self) -> list[int]:
        """The blocks that the device holds."""
        return [block for block in self.blocks if block] if self.loads else self.blocks


class PrefixHit(Struct, frozen=True):
    """A prefix that every cached group holds, and how far the closed groups alone would reach.

    `awaited` are digests whose listing on the device could make the hit longer, or spare it loads; `digests` are those
    that were asked for.
    """

    tokens: int
    closed_tokens: int
    groups: tuple[GroupHit, ...]
    awaited: tuple[bytes, ...] = ()
    digests: Sequence[bytes] = ()

    def host_tokens(self, groups: Sequence[CacheGroupConfig]) -> int:
        """Tokens of it that the host gives back, in the group that lacks most of them on the device."""
        spans = (len(part.loads) * group.block_granularity for group, part in zip(groups, self.groups, strict=True))
        return min(self.tokens, max(spans))


class PrefixMatcher:
    """Walks the index for a prompt. Claims nothing."""

    def __init__(
        self,
        index: PrefixIndex,
        groups: Sequence[CacheGroupConfig],
        *,
        prefix_granularity: int,
        host: LowerTier | None = None,
    ) -> None:
        self._index = index
        self._host = host
        self._groups = tuple(groups)
        self._prefix_granularity = prefix_granularity
        self._closed = [g for g, group in enumerate(groups) if group.is_prefix_closed]
        self._open = [g for g, group in enumerate(groups) if not group.is_prefix_closed and not group.replayable]

    def match(self, digests: Sequence[bytes], limit_tokens: int) -> PrefixHit:
        """The longest common prefix of at most `limit_tokens`. Pages beyond the limit are never looked at (R4.2)."""
        limit_pages = min(limit_tokens // self._prefix_granularity, len(digests))
        device_pages = self._index.leading_pages(self._closed, digests, limit_pages)
        closed_pages = self._continued_on_host(digests, device_pages, limit_pages)
        pages = self._converge(digests, closed_pages)
        awaited: list[bytes] = []
        if closed_pages < limit_pages:
            awaited.append(digests[closed_pages])
        if pages < closed_pages:
            awaited.append(digests[closed_pages - 1])
        hits = tuple(self._group_hit(g, digests, pages) for g in range(len(self._groups)))
        if any(hit.loads for hit in hits):
            awaited += {digests[min(device_pages, pages - 1)]: None, digests[pages - 1]: None}
        granularity = self._prefix_granularity
        # Without a closed group nothing says that more of the prefix is worth a snapshot.
        closed_tokens = closed_pages * granularity if self._closed else 0
        return PrefixHit(pages * granularity, closed_tokens, hits, tuple(awaited), digests)

    def nothing(self) -> PrefixHit:
        """The hit of a prompt that shares nothing."""
        return PrefixHit(0, 0, tuple(GroupHit(0, []) for _ in self._groups))

    def _continued_on_host(self, digests: Sequence[bytes], device_pages: int, limit_pages: int) -> int:
        """How far the closed groups reach with what the host holds as well."""
        if self._host is None:
            return device_pages
        pieces = [(g, ordinal) for g in self._closed for ordinal in range(self._index.blocks_per_page[g])]
        for page in range(device_pages, limit_pages):
            if not all(self._exists(g, ordinal, digests[page]) for g, ordinal in pieces):
                return page
        return limit_pages

    def _exists(self, g: int, ordinal: int, digest: bytes) -> bool:
        """Whether a piece is in any tier."""
        if self._index.find(g, ordinal, digest) is not None:
            return True
        return self._host is not None and self._host.find(g, ordinal, digest) is not None

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
            if not self._exists(g, ordinal, digests[page]):
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
        if self._host is None:
            return GroupHit(first, self._index.blocks_between(g, digests, first, end))
        blocks, loads = [], []
        for row in range(first, end):
            page, ordinal = divmod(row, per_page)
            block = self._index.find(g, ordinal, digests[page])
            if block is None:
                on_host = self._host.find(g, ordinal, digests[page])
                assert on_host is not None, f"row {row} of group {g} is in no tier"
                loads.append((row - first, on_host))
            blocks.append(block or 0)
        return GroupHit(first, blocks, tuple(loads))
