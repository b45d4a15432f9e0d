"""One worker thread per stream, so that copies on a CPU really overlap the forward."""

from functools import partial
from queue import SimpleQueue
from threading import Event, Thread

from control_plane.errors import DeviceFailed
from data_plane.streams.base import NO_BLOCKS, Access, FirstError, StreamEvent, Work


class HostEvent:
    """A mark in a host stream."""

    def __init__(self) -> None:
        self._passed = Event()
        self._error: BaseException | None = None

    def query(self) -> bool:
        """Whether the mark has passed."""
        return self._passed.is_set()

    def wait_host(self) -> None:
        """Wait until it has passed; raise the error it carries."""
        self._passed.wait()
        if self._error is not None:
            raise self._error

    def wait_passed(self) -> None:
        """Wait until it has passed, whatever it carries."""
        self._passed.wait()

    def passes(self, error: BaseException | None) -> None:
        """Called once by the stream's worker."""
        self._error = error
        self._passed.set()


class HostStream:
    """A queue and the thread that empties it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._errors = FirstError()
        self._items: SimpleQueue[Work | None] = SimpleQueue()
        self._closed = False
        # A daemon: a process that dies without closing its device must not hang in the interpreter's exit.
        self._thread = Thread(target=self._work, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Run `work` on the worker after all that is enqueued."""
        self._put(partial(self._errors.perform, work, label=label, stream=self.name))

    def record(self) -> HostEvent:
        """A mark after all that is enqueued."""
        event = HostEvent()
        self._put(lambda: event.passes(self._errors.take()))
        return event

    def wait(self, event: StreamEvent) -> None:
        """Hold the worker back until `event` has passed."""
        assert isinstance(event, HostEvent), f"a host stream cannot wait for {type(event).__name__}"
        self._put(event.wait_passed)

    def close(self) -> None:
        """Finish what is enqueued and end the worker."""
        if not self._closed:
            self._closed = True
            self._items.put(None)
        self._thread.join()

    def _put(self, item: Work) -> None:
        if self._closed:
            raise DeviceFailed(f"the {self.name} stream is closed")
        self._items.put(item)

    def _work(self) -> None:
        while (item := self._items.get()) is not None:
            item()


class HostStreams:
    """Three workers. They are closed together, because one may wait for a mark of another."""

    def __init__(self) -> None:
        self.forward = HostStream("forward")
        self.write = HostStream("write")
        self.load = HostStream("load")

    def close(self) -> None:
        """Finish what is enqueued and end the workers."""
        for stream in (self.forward, self.write, self.load):
            stream.close()
