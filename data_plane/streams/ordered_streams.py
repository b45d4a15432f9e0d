"""Streams that are observed: what passes through is shown to an order checker, and is otherwise as it was."""

from data_plane.ordering import Clock, OrderChecker
from data_plane.streams.base import NO_BLOCKS, Access, Stream, StreamEvent, Streams, Work

STREAM_NAMES = ("forward", "write", "load")


class OrderedEvent:
    """A mark, and what lies before it."""

    def __init__(self, inner: StreamEvent, clock: Clock, checker: OrderChecker) -> None:
        self.inner = inner
        self.clock = clock
        self._checker = checker

    def query(self) -> bool:
        """Whether the mark has passed: if so, the host knows it."""
        has_passed = self.inner.query()
        if has_passed:
            self._checker.passed(self.clock)
        return has_passed

    def wait_host(self) -> None:
        """Wait until the mark has passed, also when it then raises."""
        try:
            self.inner.wait_host()
        finally:
            self._checker.passed(self.clock)


class OrderedStream:
    """One stream of those."""

    def __init__(self, inner: Stream, index: int, checker: OrderChecker) -> None:
        self.name = inner.name
        self._inner = inner
        self._index = index
        self._checker = checker

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Show it before it can run."""
        self._checker.enqueued(self._index, label, access)
        self._inner.enqueue(work, label, access)

    def record(self) -> OrderedEvent:
        """A mark that knows what lies before it."""
        return OrderedEvent(self._inner.record(), self._checker.recorded(self._index), self._checker)

    def wait(self, event: StreamEvent) -> None:
        """Wait for what the mark stands for."""
        assert isinstance(event, OrderedEvent), f"an observed stream cannot wait for {type(event).__name__}"
        self._inner.wait(event.inner)
        self._checker.waited(self._index, event.clock)


class OrderedStreams:
    """`inner`, observed."""

    def __init__(self, inner: Streams, checker: OrderChecker) -> None:
        """`checker` was made for streams called STREAM_NAMES."""
        self._inner = inner
        self.forward = OrderedStream(inner.forward, 0, checker)
        self.write = OrderedStream(inner.write, 1, checker)
        self.load = OrderedStream(inner.load, 2, checker)

    def close(self) -> None:
        """Close the inner streams."""
        self._inner.close()
