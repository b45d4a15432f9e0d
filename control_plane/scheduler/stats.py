"""What the scheduler can say in numbers."""

from msgspec import Struct


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
    cached_tokens: int
    generated_tokens: int
    stored_blocks: int
    loaded_blocks: int


class StallWatch:
    """Counts rounds in a row with live requests, no work and nothing in flight (R5.8). Never changes a plan."""

    def __init__(self) -> None:
        self.rounds = 0

    def observe(self, *, is_stalled: bool) -> bool:
        """Count one round; True when the count is worth a report: at 1024 and at every doubling."""
        self.rounds = self.rounds + 1 if is_stalled else 0
        return self.rounds >= 1024 and self.rounds & (self.rounds - 1) == 0
