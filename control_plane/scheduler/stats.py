"""What the scheduler can say in numbers."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from control_plane.cache.prefix.matcher import PrefixHit
from control_plane.config import SchedulerConfig


class RetractionReason(StrEnum):
    """Why a request gave its pages back before it was done."""

    CAPACITY = "capacity"  # another one needed the room
    NOT_FILLED = "not-filled"  # the device withheld its forward
    FORWARD_FAILED = "forward-failed"  # what it read of another request's forward was never written
    LOAD_FAILED = "load-failed"  # its pages did not come back from the host
    TRANSFER_FAILED = "transfer-failed"  # its peer did not send its pages


class GroupStats(Struct, frozen=True):
    """One cache group. `used_blocks` and `cached_blocks` are LCM blocks as of now, bound to this group alone.

    The others are blocks of the group and only rise, counted at first admissions: what the longest hit would have taken
    from the cache, what was taken, and how many of those came from the host.
    """

    id: str
    used_blocks: int
    cached_blocks: int
    queried_blocks: int
    hit_blocks: int
    loaded_blocks: int


class HitCounts:
    """What prompts could have found in the cache, and what they found, by group."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.groups = config.groups
        self.tokens = 0
        self.queried_tokens = 0
        self._prefix_granularity = config.prefix_granularity
        self._is_cached = config.prefix_cache
        self.queried = [0] * len(self.groups)
        self.hit = [0] * len(self.groups)
        self.loaded = [0] * len(self.groups)

    def count(self, hit: PrefixHit, prompt_tokens: int) -> None:
        """A prompt was admitted for the first time. Of the last page at least a token is always computed (R4.2)."""
        self.tokens += hit.tokens
        self.queried_tokens += prompt_tokens if self._is_cached else 0
        longest = (prompt_tokens - 1) // self._prefix_granularity * self._prefix_granularity
        for index, (group, part) in enumerate(zip(self.groups, hit.groups, strict=True)):
            if group.replayable or not self._is_cached:
                continue
            blocks = longest // group.block_granularity
            self.queried[index] += blocks if group.is_prefix_closed else min(blocks, group.lookback_blocks)
            self.hit[index] += len(part.blocks)
            self.loaded[index] += len(part.loads)

    def stats(self, blocks: Sequence[tuple[int, int]]) -> tuple[GroupStats, ...]:
        """With the LCM blocks that each group holds now: held by requests, and only cached."""
        return tuple(
            GroupStats(group.id, *blocks[index], self.queried[index], self.hit[index], self.loaded[index])
            for index, group in enumerate(self.groups)
        )


class SchedulerStats(Struct, frozen=True):
    """Gauges as of now (`running` to `stalled_rounds`), then counters that only rise. Blocks are LCM blocks."""

    running: int
    waiting: int
    used_blocks: int
    cached_blocks: int
    free_blocks: int
    total_blocks: int
    host_used_blocks: int
    host_total_blocks: int
    transfers_out: int
    copies_out: int
    rounds_in_flight: int
    stalled_rounds: int
    rounds: int
    requests: int
    retractions: int
    prompt_tokens: int
    queried_tokens: int
    cached_tokens: int
    generated_tokens: int
    stored_blocks: int
    loaded_blocks: int
    retraction_reasons: tuple[tuple[RetractionReason, int], ...]
    groups: tuple[GroupStats, ...]


class StallWatch:
    """Counts rounds in a row with live requests, no work and nothing in flight (R5.8). Never changes a plan."""

    def __init__(self) -> None:
        self.rounds = 0

    def observe(self, *, is_stalled: bool) -> bool:
        """Count one round; True when the count is worth a report: at 1024 and at every doubling."""
        self.rounds = self.rounds + 1 if is_stalled else 0
        return self.rounds >= 1024 and self.rounds & (self.rounds - 1) == 0
