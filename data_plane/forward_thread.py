"""Three threads between the loop and the device: one hands rounds to the streams, two tell what is done.

The first never waits for the device, so the next round is on its way while this one computes. Plans are carried out
and answered in the order in which they were submitted. Stores are slower than rounds, and are acknowledged beside them.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from control_plane.errors import DeviceFailed
from control_plane.messages.wire import encode_events
from data_plane.executor import RoundInFlight
from data_plane.ops.host_tier import CopyInFlight
from data_plane.rounds import Letter, Rounds

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
    """Submitting never waits; answers are delivered on the completion thread, acknowledged stores on another."""

    def __init__(self, rounds: Rounds, deliver: Deliver) -> None:
        self._rounds = rounds
        self._deliver = deliver
        self._plans: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._flights: SimpleQueue[tuple[int, RoundInFlight | None] | None] = SimpleQueue()
        self._stores: SimpleQueue[tuple[int, CopyInFlight] | None] = SimpleQueue()
        self._closed = False
        self.answered_count = 0
        # Daemons: a process that dies without closing its device must not hang in the interpreter's exit.
        self._threads = (
            Thread(target=self._begin_rounds, name="forward", daemon=True),
            Thread(target=self._end_rounds, name="completion", daemon=True),
            Thread(target=self._end_stores, name="stores", daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def submit(self, round: int, plan: bytes) -> None:
        """Queue the plan."""
        if self._closed:
            raise DeviceFailed(f"round {round} came after the device was closed")
        self._plans.put((round, plan))

    def close(self) -> None:
        """Let the threads come to their end."""
        if not self._closed:
            self._closed = True
            self._plans.put(None)
        for thread in self._threads:
            thread.join()

    def _begin_rounds(self) -> None:
        while (item := self._plans.get()) is not None:
            round, plan = item
            flight = self._rounds.begin(round, plan)
            self._flights.put((round, flight))
            for store in () if flight is None else flight.stores:
                self._stores.put((round, store))
        self._flights.put(None)
        self._stores.put(None)

    def _end_rounds(self) -> None:
        while (item := self._flights.get()) is not None:
            round, flight = item
            letters = self._rounds.end(round, flight)
            # Counted first: whoever gets the answer finds the round no longer in flight.
            self.answered_count += 1
            self._send(round, letters)

    def _end_stores(self) -> None:
        while (item := self._stores.get()) is not None:
            round, store = item
            self._send(round, [self._rounds.end_store(store)])

    def _send(self, round: int, letters: list[Letter]) -> None:
        try:
            for letter in letters:
                self._deliver(encode_events(letter))
        except BaseException as error:
            self._rounds.fail(round, error)


class ForwardStepped:
    """The same without threads: `submit` hands the plan to the streams; what is out lands when it is told to."""

    def __init__(self, rounds: Rounds, deliver: Deliver) -> None:
        self._rounds = rounds
        self._deliver = deliver
        self._flights: deque[tuple[int, RoundInFlight | None]] = deque()
        self._stores: deque[CopyInFlight] = deque()
        self._closed = False
        self.answered_count = 0

    @property
    def stores_out(self) -> int:
        """Stores that were handed to the streams and not yet acknowledged."""
        return len(self._stores)

    def submit(self, round: int, plan: bytes) -> None:
        """Hand the plan to the streams now."""
        if self._closed:
            raise DeviceFailed(f"round {round} came after the device was closed")
        flight = self._rounds.begin(round, plan)
        self._flights.append((round, flight))
        if flight is not None:
            self._stores.extend(flight.stores)

    def land(self) -> bool:
        """Wait for the oldest round that is out, and deliver its answer if it has one. False when none is out."""
        if not self._flights:
            return False
        letters = self._rounds.end(*self._flights.popleft())
        self.answered_count += 1
        for letter in letters:
            self._deliver(encode_events(letter))
        return True

    def land_store(self) -> bool:
        """Wait for the oldest store that is out, and acknowledge it. False when none is out."""
        if not self._stores:
            return False
        self._deliver(encode_events(self._rounds.end_store(self._stores.popleft())))
        return True

    def land_passed_stores(self) -> int:
        """Acknowledge the oldest stores as far as they are over, without waiting; how many those were."""
        count = 0
        while self._stores and self._stores[0].has_passed():
            count += self.land_store()
        return count

    def close(self) -> None:
        """Land what is out and refuse further plans."""
        self._closed = True
        while self.land() or self.land_store():
            pass


class ForwardInline(ForwardStepped):
    """Every round and its stores land before `submit` returns."""

    def submit(self, round: int, plan: bytes) -> None:
        """Carry the plan out and deliver its answer now."""
        super().submit(round, plan)
        self.land()
        while self.land_store():
            pass
