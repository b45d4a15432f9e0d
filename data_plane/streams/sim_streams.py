"""Streams that run their work as late, and in as bad an order, as what was promised allows. For tests and simulation.

Nothing runs when it is enqueued. Only when the host waits, asks or closes is work done, one piece at a time: that of
the stream which stands first in a random order, while those behind it starve. The order is drawn anew now and then. So
work that nobody waited for comes last, or first, or in between, by the seed; the same seed gives the same run.
"""

from collections import deque
from functools import partial
from random import Random

from control_plane.errors import DeviceFailed
from data_plane.streams.base import NO_BLOCKS, Access, FirstError, StreamEvent, Work

REDRAW_CHANCE = 0.125


class SimEvent:
    """A mark in a simulated stream."""

    def __init__(self, schedule: "_Schedule", stream: str) -> None:
        self.has_passed = False
        self._schedule = schedule
        self._stream = stream
        self._error: BaseException | None = None

    def query(self) -> bool:
        """Whether the mark has passed. Each question lets one piece of work run, so asking on gets an answer."""
        if not self.has_passed:
            self._schedule.step()
        return self.has_passed

    def wait_host(self) -> None:
        """Run work until the mark has passed, and nothing after that; raise the error it carries."""
        while not self.has_passed:
            if not self._schedule.step():
                raise DeviceFailed(f"a mark on the {self._stream} stream cannot pass: every stream waits for another")
        if self._error is not None:
            raise self._error

    def passes(self, error: BaseException | None) -> None:
        """Called once, when the stream gets there."""
        self._error = error
        self.has_passed = True


class SimStream:
    """A queue of work, each piece with the event that it waits for, if any."""

    def __init__(self, name: str, schedule: "_Schedule") -> None:
        self.name = name
        self._schedule = schedule
        self._errors = FirstError()
        self._items: deque[tuple[SimEvent | None, Work]] = deque()
        self._is_busy = False
        self._closed = False
        schedule.streams.append(self)

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Keep `work` for later."""
        self._put(None, partial(self._errors.perform, work, label=label, stream=self.name))

    def record(self) -> SimEvent:
        """A mark after all that is enqueued."""
        event = SimEvent(self._schedule, self.name)
        self._put(None, lambda: event.passes(self._errors.take()))
        return event

    def wait(self, event: StreamEvent) -> None:
        """Hold back what comes until `event` has passed."""
        assert isinstance(event, SimEvent), f"a simulated stream cannot wait for {type(event).__name__}"
        self._put(event, lambda: None)

    def advance(self) -> bool:
        """Do the next piece if it may be done: not before what it waits for, nor inside the piece before it."""
        if self._is_busy or not self._items:
            return False
        awaited, work = self._items[0]
        if awaited is not None and not awaited.has_passed:
            return False
        self._items.popleft()
        self._is_busy = True
        work()
        self._is_busy = False
        return True

    def close(self) -> None:
        """Refuse further work."""
        self._closed = True

    def _put(self, awaited: SimEvent | None, work: Work) -> None:
        if self._closed:
            raise DeviceFailed(f"the {self.name} stream is closed")
        self._items.append((awaited, work))


class _Schedule:
    """Who comes next."""

    def __init__(self, seed: int) -> None:
        self.streams: list[SimStream] = []
        self._random = Random(seed)

    def step(self) -> bool:
        """Do one piece of work; False when none may be done."""
        if self._random.random() < REDRAW_CHANCE:
            self.draw()
        return any(stream.advance() for stream in self.streams)

    def draw(self) -> None:
        """Another order."""
        self._random.shuffle(self.streams)


class SimStreams:
    """Three streams and their order, all on the caller's thread."""

    def __init__(self, seed: int = 0) -> None:
        self._schedule = _Schedule(seed)
        self.forward = SimStream("forward", self._schedule)
        self.write = SimStream("write", self._schedule)
        self.load = SimStream("load", self._schedule)
        self._schedule.draw()

    def close(self) -> None:
        """Finish what is enqueued, in no better order."""
        for stream in (self.forward, self.write, self.load):
            stream.close()
        while self._schedule.step():
            pass
