"""Virtual time: what is due when. It passes from one happening to the next, and stands still in between."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Calendar:
    """Happenings by time; those of one moment in the order in which they were entered."""

    def __init__(self) -> None:
        self.now = 0
        self._happenings: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._happenings)

    def enter(self, time: int, happening: Callable[[], None]) -> None:
        """`happening` comes at `time`, or now if that is over."""
        heappush(self._happenings, (max(time, self.now), next(self._numbers), happening))

    def pass_to(self, time: int) -> None:
        """It is `time`: whatever is due until then happens."""
        self.now = max(self.now, time)
        while self._happenings and self._happenings[0][0] <= self.now:
            heappop(self._happenings)[2]()

    def pass_to_next(self) -> None:
        """It is as late as the next happening. There must be one."""
        self.pass_to(self._happenings[0][0])
