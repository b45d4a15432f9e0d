"""What one step asks of the cache, and what it brings along."""

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from control_plane.messages import LoadBack


class GroupDemand(Struct, frozen=True, gc=False):
    """What one step asks of one cache group: table rows for all tokens before `end`, and `reserve_tokens` beyond.

    Rows before `first` that are not held stay holes: that is how a sparse suffix is asked for.
    """

    end: int
    reserve_tokens: int = 0
    first: int = 0

    def rows(self, block_granularity: int) -> int:
        """Where the rows end that the demand covers."""
        return -(-(self.end + self.reserve_tokens) // block_granularity)


class BoundaryKind(IntEnum):
    """How much a cached boundary of a group that is not prefix-closed is worth (R4.6)."""

    CHUNK = 0
    ENDPOINT = 1
    PROMOTED = 2


class CacheProgress(Struct, frozen=True, gc=False):
    """How far a request's pages went into the cache, and what is still to be said about them.

    `access_epoch` is that of the admission that gave it its first pages. `promotion_boundary` is where the closed
    groups' match ended if the others stopped short of it (0: they did not). `materialized` are the aligned boundaries
    whose snapshots admitted prefill windows compute, with their kinds, until they are published.
    """

    published_pages: int = 0
    access_epoch: int = 0
    promotion_boundary: int = 0
    materialized: tuple[tuple[int, BoundaryKind], ...] = ()


class RequestProgress(Struct, frozen=True, gc=False):
    """What a request computed since its last admission: the prefix pages to publish now, and what slid out.

    `digests` names every completed page of the request; those from `published_pages` to `completed_pages` are new.
    """

    before: CacheProgress
    digests: Sequence[bytes]
    completed_pages: int
    computed_tokens: int

    @property
    def published_pages(self) -> int:
        """Pages that are in the cache already."""
        return self.before.published_pages

    def boundary_kind(self, boundary: int) -> BoundaryKind | None:
        """What a boundary of the newly completed range was recorded as; None: no snapshot of it exists."""
        for recorded, kind in self.before.materialized:
            if recorded == boundary:
                return kind
        return None


Listed = tuple[int, int, int]
"""(group, block, token at which what it holds ends)"""


class Granted(Struct, frozen=True, gc=False):
    """An admission succeeded. `fresh` are the new blocks of each group (to be zeroed), `evicted` what made room.

    `listed` are blocks that went into the cache with it, `load_backs` fill those of the hit that only the host had.
    """

    fresh: tuple[list[int], ...]
    evicted: tuple[int, ...]
    progress: CacheProgress
    listed: Sequence[Listed] = ()
    load_backs: Sequence[LoadBack] = ()


class Refused(Struct, frozen=True, gc=False):
    """No room now. Nothing was changed. `wanted` blocks of `group` were asked for when `available` could be had.

    While the pool's `available_blocks` stays below `needs_blocks`, asking again cannot succeed.
    """

    group: int
    wanted: int
    available: int
    needs_blocks: int
