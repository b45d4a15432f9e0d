"""CUDA streams that cupy owns and torch shares: kernels and copies of either run in one order."""

from typing import Any

import torch

from control_plane.errors import DeviceFailed
from data_plane.cuda import load_cupy
from data_plane.streams.base import NO_BLOCKS, Access, FirstError, StreamEvent, Work


class CupyEvent:
    """A mark in a CUDA stream, with the error of the Python code that enqueued the work before it."""

    def __init__(self, mark: Any, error: BaseException | None) -> None:
        self.mark = mark
        self._error = error

    def query(self) -> bool:
        """Whether the device has reached the mark."""
        return bool(self.mark.done)

    def wait_host(self) -> None:
        """Wait for the device, asleep. Raises the enqueuing code's error, or CUDA's own."""
        self.mark.synchronize()
        if self._error is not None:
            raise self._error


class CupyStream:
    """One non-blocking stream. `enqueue` runs the work at once; what it launches is ordered by the device."""

    def __init__(self, name: str) -> None:
        self._cupy = load_cupy()
        self.name = name
        self._errors = FirstError()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._torch_stream = torch.cuda.ExternalStream(self._stream.ptr)  # type: ignore[no-untyped-call]
        self._closed = False

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        """Run `work` now, with this as the current stream of cupy and of torch."""
        if self._closed:
            raise DeviceFailed(f"the {self.name} stream is closed")
        with self._stream, torch.cuda.stream(self._torch_stream):
            self._errors.perform(work, label=label, stream=self.name)

    def record(self) -> CupyEvent:
        """A mark after all that was launched here."""
        # Blocking, so that the thread that waits for it sleeps rather than spins.
        mark = self._cupy.cuda.Event(block=True, disable_timing=True)
        mark.record(self._stream)
        return CupyEvent(mark, self._errors.take())

    def wait(self, event: StreamEvent) -> None:
        """Let the device hold back what is launched here from now on."""
        assert isinstance(event, CupyEvent), f"a CUDA stream cannot wait for {type(event).__name__}"
        self._stream.wait_event(event.mark)

    def close(self) -> None:
        """Wait for the device to finish what was launched."""
        if not self._closed:
            self._closed = True
            self._stream.synchronize()


class CupyStreams:
    """Three CUDA streams. Raises ConfigError without a device."""

    def __init__(self) -> None:
        self.forward = CupyStream("forward")
        self.write = CupyStream("write")
        self.load = CupyStream("load")

    def close(self) -> None:
        """Wait for the device to finish what was launched."""
        for stream in (self.forward, self.write, self.load):
            stream.close()
