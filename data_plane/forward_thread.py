"""Two threads between the loop and the device: one hands rounds to the streams, one tells when they are done.

The first never waits for the device, so the next round is on its way while this one computes. Plans are carried out
and answered in the order in which they were submitted.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from control_plane.errors import DeviceFailed
from control_plane.messages.wire import encode_events
from data_plane.executor import RoundInFlight
from data_plane.rounds import Rounds

Deliver = Callable[[bytes], None]


class Forward(Protocol):
    """Encoded plans in, encoded events out, in order."""

    @property
    def answered_count(self) -> int:
        """Plans that were carried out or refused, and answered where they have an answer."""
        ...

    def submit(self, round: int, plan: bytes) -> None:
        """Carry out an encoded plan after those before it. Raises DeviceFailed when closed."""
        ...

    def close(self) -> None:
        """Carry out and answer what was submitted. A second call does nothing."""
        ...


class ForwardThread:
    """Submitting never waits; answers are delivered on the completion thread."""

    def __init__(self, rounds: Rounds, deliver: Deliver) -> None:
        self._rounds = rounds
        self._deliver = deliver
        self._plans: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._flights: SimpleQueue[tuple[int, RoundInFlight | None] | None] = SimpleQueue()
        self._closed = False
        self.answered_count = 0
        # Daemons: a process that dies without closing its device must not hang in the interpreter's exit.
        self._threads = (
            Thread(target=self._begin_rounds, name="forward", daemon=True),
            Thread(target=self._end_rounds, name="completion", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def submit(self, round: int, plan: bytes) -> None:
        """Queue the plan."""
        if self._closed:
            raise DeviceFailed(f"round {round} came after the device was closed")
        self._plans.put((round, plan))

    def close(self) -> None:
        """Let both threads come to their end."""
        if not self._closed:
            self._closed = True
            self._plans.put(None)
        for thread in self._threads:
            thread.join()

    def _begin_rounds(self) -> None:
        while (item := self._plans.get()) is not None:
            round, plan = item
            self._flights.put((round, self._rounds.begin(round, plan)))
        self._flights.put(None)

    def _end_rounds(self) -> None:
        while (item := self._flights.get()) is not None:
            round, flight = item
            events = self._rounds.end(round, flight)
            # Counted first: whoever gets the answer finds the round no longer in flight.
            self.answered_count += 1
            try:
                if events:
                    self._deliver(encode_events(events))
            except BaseException as error:
                self._rounds.fail(round, error)


class ForwardStepped:
    """The same without threads: `submit` hands the plan to the streams, and `land` waits for the oldest."""

    def __init__(self, rounds: Rounds, deliver: Deliver) -> None:
        self._rounds = rounds
        self._deliver = deliver
        self._flights: deque[tuple[int, RoundInFlight | None]] = deque()
        self._closed = False
        self.answered_count = 0

    def submit(self, round: int, plan: bytes) -> None:
        """Hand the plan to the streams now."""
        if self._closed:
            raise DeviceFailed(f"round {round} came after the device was closed")
        self._flights.append((round, self._rounds.begin(round, plan)))

    def land(self) -> bool:
        """Wait for the oldest round that is out, and deliver its answer if it has one. False when none is out."""
        if not self._flights:
            return False
        events = self._rounds.end(*self._flights.popleft())
        self.answered_count += 1
        if events:
            self._deliver(encode_events(events))
        return True

    def close(self) -> None:
        """Land what is out and refuse further plans."""
        self._closed = True
        while self.land():
            pass


class ForwardInline(ForwardStepped):
    """Every round lands before `submit` returns."""

    def submit(self, round: int, plan: bytes) -> None:
        """Carry the plan out and deliver its answer now."""
        super().submit(round, plan)
        self.land()
