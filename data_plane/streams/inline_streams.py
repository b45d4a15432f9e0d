"""Streams without threads: work is done when it is enqueued. For tests, simulation and single-stepping."""

from control_plane.errors import DeviceFailed
from data_plane.streams.base import NO_BLOCKS, Access, FirstError, StreamEvent, Work


class InlineEvent:
    """A mark that had passed when it was made."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def query(self) -> bool:
        """Always true."""
        return True

    def wait_host(self) -> None:
        """Raise the error it carries."""
        if self._error is not None:
            raise self._error


class InlineStream:
    """Runs on the caller's thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._errors = FirstError()
        self._closed = False

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Run `work` now."""
        if self._closed:
            raise DeviceFailed(f"the {self.name} stream is closed")
        self._errors.perform(work, label=label, stream=self.name)

    def record(self) -> InlineEvent:
        """A mark that has passed."""
        return InlineEvent(self._errors.take())

    def wait(self, event: StreamEvent) -> None:
        """Nothing to wait for."""
        assert isinstance(event, InlineEvent), f"an inline stream cannot wait for {type(event).__name__}"

    def close(self) -> None:
        """Refuse further work."""
        self._closed = True


class InlineStreams:
    """Three streams that are always idle."""

    def __init__(self) -> None:
        self.forward = InlineStream("forward")
        self.write = InlineStream("write")
        self.load = InlineStream("load")

    def close(self) -> None:
        """Refuse further work."""
        for stream in (self.forward, self.write, self.load):
            stream.close()
