"""What one step asks of the cache, and what it brings along."""

from collections.abc import Sequence

from msgspec import Struct


class GroupDemand(Struct, frozen=True):
    """What one step asks of one cache group: blocks for all tokens before `end`, and `reserve_tokens` beyond."""

    end: int
    reserve_tokens: int = 0

    def blocks(self, block_granularity: int) -> int:
        """Table rows that the demand covers, those already held included."""
        return -(-(self.end + self.reserve_tokens) // block_granularity)


class CacheProgress(Struct, frozen=True):
    """How far a request's pages went into the cache, and the epoch of the admission that gave it its first ones."""

    published_pages: int = 0
    access_epoch: int = 0


class RequestProgress(Struct, frozen=True):
    """What a request computed since its last admission: the prefix pages to publish now.

    `digests` names every completed page of the request; those from `published_pages` to `completed_pages` are new.
    """

    digests: Sequence[bytes]
    published_pages: int
    completed_pages: int
    access_epoch: int

    @property
    def has_new_pages(self) -> bool:
        """Whether there is anything to publish."""
        return self.completed_pages > self.published_pages


NO_PROGRESS = RequestProgress((), 0, 0, 0)


class Granted(Struct, frozen=True):
    """An admission succeeded. `fresh` are the new blocks of each group (to be zeroed), `evicted` what made room."""

    fresh: tuple[list[int], ...]
    evicted: tuple[int, ...]
    progress: CacheProgress


class Refused(Struct, frozen=True):
    """No room now. Nothing was changed. `wanted` blocks of `group` were asked for when `available` could be had.

    While the pool's `available_blocks` stays below `needs_blocks`, asking again cannot succeed.
    """

    group: int
    wanted: int
    available: int
    needs_blocks: int
