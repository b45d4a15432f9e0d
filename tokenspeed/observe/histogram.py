"""Counting numbers into buckets: what a Prometheus histogram shows, without a lock or a lookup by label per number."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Bounds in seconds, those of vLLM: panels and alerts made for one fit the other.
FIRST_TOKEN_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_SECONDS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS: Final = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ROUND_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS: Final = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class Histogram:
    """How many numbers fell at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a number, or the same one several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many numbers there were."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound, numbers at or below it), the last bound being infinity: as Prometheus wants it."""
        rows: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), total))
        return rows
