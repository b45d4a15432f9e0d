"""Copies a block between a device and the host memory through which it passes to the other device."""

from collections.abc import Container
from typing import Any, Protocol

from data_plane.cuda import load_cupy
from data_plane.model.base import DeviceMemory
from data_plane.model.faulty import InjectedFault


class PageCopies(Protocol):
    """One half of a page's way, on the current stream of the device whose block it is. What raises ends the transfer.

    `page` is uint8 [bytes of a block of the group], on the host.
    """

    def read(self, group: int, block: int, page: Any) -> None:
        """From the block to `page`."""
        ...

    def write(self, group: int, block: int, page: Any) -> None:
        """From `page` to the block."""
        ...


class HostPageCopies:
    """The device's memory is a numpy array; the thread of the stream copies."""

    def __init__(self, memory: DeviceMemory, *, groups: int) -> None:
        self._blocks = [memory.blocks(group) for group in range(groups)]

    def read(self, group: int, block: int, page: Any) -> None:
        """From the block to `page`."""
        page[:] = self._blocks[group][block]

    def write(self, group: int, block: int, page: Any) -> None:
        """From `page` to the block."""
        self._blocks[group][block] = page


class CudaPageCopies:
    """Asynchronous copies, which leave the cores of the device to the model. `page` is pinned."""

    def __init__(self, memory: DeviceMemory, *, groups: int) -> None:
        self._cupy = load_cupy()
        self._blocks = [memory.blocks(group) for group in range(groups)]

    def read(self, group: int, block: int, page: Any) -> None:
        """From the block to `page`."""
        runtime = self._cupy.cuda.runtime
        self._copy(page.ctypes.data, self._blocks[group][block].data.ptr, page.nbytes, runtime.memcpyDeviceToHost)

    def write(self, group: int, block: int, page: Any) -> None:
        """From `page` to the block."""
        runtime = self._cupy.cuda.runtime
        self._copy(self._blocks[group][block].data.ptr, page.ctypes.data, page.nbytes, runtime.memcpyHostToDevice)

    def _copy(self, into: int, source: int, size_bytes: int, kind: int) -> None:
        stream = self._cupy.cuda.get_current_stream().ptr
        self._cupy.cuda.runtime.memcpyAsync(into, source, size_bytes, kind, stream)


class FaultyPageCopies:
    """`inner`, but the writes numbered in `fail_writes` raise InjectedFault when half of the page is written.

    The first write has number 1. `fail_writes` is asked at every write, so it may be a set that grows.
    """

    def __init__(self, inner: PageCopies, *, fail_writes: Container[int]) -> None:
        self._inner = inner
        self._fail_writes = fail_writes
        self.write_count = 0

    def read(self, group: int, block: int, page: Any) -> None:
        """Read."""
        self._inner.read(group, block, page)

    def write(self, group: int, block: int, page: Any) -> None:
        """Write, or raise InjectedFault."""
        self.write_count += 1
        if self.write_count in self._fail_writes:
            spoiled = page.copy()
            spoiled[len(page) // 2 :] = 0
            self._inner.write(group, block, spoiled)
            raise InjectedFault(f"page write {self.write_count} was told to fail")
        self._inner.write(group, block, page)
