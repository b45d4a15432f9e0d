"""Alive, ready, stuck, draining: what the server says of itself, and how it comes to an end."""

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

from tokenspeed.engine import AsyncEngine

# No result for so long while something is unfinished: an operator should look.
STUCK_SECONDS = 120.0


class Condition(StrEnum):
    """What the server can do for a new request; `failed` and `stuck` need a person or a restart."""

    READY = "ready"
    DRAINING = "draining"
    STUCK = "stuck"
    FAILED = "failed"


class Lifecycle:
    """Counts the answers under way, refuses new ones while draining, and watches for silence.

    Silence is measured between questions (`/health`, `/ready`): a server that nobody asks needs no timer.
    """

    def __init__(self, engine: AsyncEngine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._seen_at = 0.0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    def condition(self) -> tuple[Condition, str]:
        """What it is, and why in words."""
        if (failure := self._engine.failure) is not None:
            return Condition.FAILED, failure
        if (silence := self._silent_seconds()) >= STUCK_SECONDS:
            return Condition.STUCK, (
                f"{self._engine.unfinished_count} generations are unfinished and nothing has moved for {silence:.0f} s"
            )
        if self.is_draining:
            return Condition.DRAINING, f"shutting down: {self._open} answers are still under way"
        return Condition.READY, ""

    def enter(self) -> None:
        """An answer that uses the engine begins."""
        self._open += 1
        self._idle.clear()

    def leave(self) -> None:
        """It is over, in whatever way."""
        self._open -= 1
        if not self._open:
            self._idle.set()

    async def drain(self, seconds: float, hurry: asyncio.Event | None = None) -> int:
        """Take no new requests and wait for the answers under way; how many are left when the time is up.

        `hurry` ends the waiting before its time.
        """
        self.is_draining = True
        ends = [asyncio.create_task(event.wait()) for event in (self._idle, hurry) if event is not None]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        return self._open

    def _silent_seconds(self) -> float:
        stats = self._engine.stats()
        seen = (stats.scheduler.requests, stats.mailbox.delivered, stats.scheduler.rounds)
        now = self._clock()
        if seen != self._seen or not self._engine.unfinished_count:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at
