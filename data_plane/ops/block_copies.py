"""Moves blocks between the device and the host, by way of a staging buffer or straight."""

from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from control_plane.messages import LoadBack, Store
from control_plane.messages.columns import view
from data_plane.cuda import load_cupy
from data_plane.memory.host_pages import HostPages
from data_plane.memory.pinned import IdShipper
from data_plane.model.base import DeviceMemory
from data_plane.ops.word_kernel import WordKernel, word_kernel

COPY_SOURCE = r"""
extern "C" __global__ void gather_blocks(const word* blocks, const int* ids, word* buffer, const long long words) {
    const word* from = blocks + (long long)ids[blockIdx.x] * words;
    word* to = buffer + (long long)blockIdx.x * words;
    const long long stride = (long long)gridDim.y * blockDim.x;
    for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < words; i += stride) to[i] = from[i];
}
extern "C" __global__ void scatter_blocks(word* blocks, const int* ids, const word* buffer, const long long words) {
    const word* from = buffer + (long long)blockIdx.x * words;
    word* to = blocks + (long long)ids[blockIdx.x] * words;
    const long long stride = (long long)gridDim.y * blockDim.x;
    for (long long i = (long long)blockIdx.y * blockDim.x + threadIdx.x; i < words; i += stride) to[i] = from[i];
}
"""


class BlockCopies(Protocol):
    """One step of a store or load-back on the current stream. The blocks exist; a step that raises fails its operation.

    A staging buffer holds the operation's blocks one after the other.
    """

    def buffer(self, size_bytes: int) -> Any:
        """Memory for a staging buffer: uint8 [size_bytes], near the device. Raises MemoryError."""
        ...

    def gather(self, store: Store, buffer: Any) -> None:
        """Device to buffer."""
        ...

    def write(self, store: Store, buffer: Any) -> None:
        """Buffer to host."""
        ...

    def write_directly(self, store: Store) -> None:
        """Device to host."""
        ...

    def fill(self, load: LoadBack, buffer: Any) -> None:
        """Host to buffer."""
        ...

    def scatter(self, load: LoadBack, buffer: Any) -> None:
        """Buffer to device."""
        ...


class HostBlockCopies:
    """Both tiers are numpy arrays; the thread of the stream copies."""

    def __init__(self, memory: DeviceMemory, pages: HostPages, *, groups: int) -> None:
        self._device = [memory.blocks(group) for group in range(groups)]
        self._host = [pages.blocks(group) for group in range(groups)]

    def buffer(self, size_bytes: int) -> Any:
        """Ordinary memory."""
        return np.empty(size_bytes, dtype=np.uint8)

    def gather(self, store: Store, buffer: Any) -> None:
        """Device to buffer."""
        sources = view(store.sources)
        self._staged(buffer, store.group, len(sources))[:] = self._device[store.group][sources]

    def write(self, store: Store, buffer: Any) -> None:
        """Buffer to host."""
        destinations = view(store.destinations)
        self._host[store.group][destinations] = self._staged(buffer, store.group, len(destinations))

    def write_directly(self, store: Store) -> None:
        """Device to host."""
        self._host[store.group][view(store.destinations)] = self._device[store.group][view(store.sources)]

    def fill(self, load: LoadBack, buffer: Any) -> None:
        """Host to buffer."""
        sources = view(load.sources)
        self._staged(buffer, load.group, len(sources))[:] = self._host[load.group][sources]

    def scatter(self, load: LoadBack, buffer: Any) -> None:
        """Buffer to device."""
        destinations = view(load.destinations)
        self._device[load.group][destinations] = self._staged(buffer, load.group, len(destinations))

    def _staged(self, buffer: Any, group: int, count: int) -> Any:
        """The first `count` blocks in a buffer."""
        block_bytes = self._device[group].shape[1]
        return buffer[: count * block_bytes].reshape(count, block_bytes)


class CudaBlockCopies:
    """Kernels within the device; asynchronous copies between it and pinned memory, which leave its cores to the model.

    Blocks that lie one after the other on both sides go in one copy.
    """

    def __init__(self, memory: DeviceMemory, pages: HostPages, *, groups: int) -> None:
        self._cupy = load_cupy()
        self._device = [memory.blocks(group) for group in range(groups)]
        self._host = [pages.blocks(group) for group in range(groups)]
        self._gathers = [self._kernel("gather_blocks", group) for group in range(groups)]
        self._scatters = [self._kernel("scatter_blocks", group) for group in range(groups)]
        self._shipper = IdShipper()

    def buffer(self, size_bytes: int) -> Any:
        """Memory of the device."""
        return self._cupy.empty(size_bytes, dtype=np.uint8)

    def gather(self, store: Store, buffer: Any) -> None:
        """Device to buffer."""
        self._launch(self._gathers[store.group], store.group, store.sources, buffer)

    def write(self, store: Store, buffer: Any) -> None:
        """Buffer to host."""
        destinations = view(store.destinations)
        staged = np.arange(len(destinations), dtype=np.int32)
        for begin, end in runs(staged, destinations):
            self._copy(store.group, end - begin, host=destinations[begin], device=buffer.data.ptr, at=begin, out=True)

    def write_directly(self, store: Store) -> None:
        """Device to host."""
        sources, destinations = view(store.sources), view(store.destinations)
        blocks = self._device[store.group].data.ptr
        for begin, end in runs(sources, destinations):
            count = end - begin
            self._copy(store.group, count, host=destinations[begin], device=blocks, at=sources[begin], out=True)

    def fill(self, load: LoadBack, buffer: Any) -> None:
        """Host to buffer."""
        sources = view(load.sources)
        staged = np.arange(len(sources), dtype=np.int32)
        for begin, end in runs(sources, staged):
            self._copy(load.group, end - begin, host=sources[begin], device=buffer.data.ptr, at=begin, out=False)

    def scatter(self, load: LoadBack, buffer: Any) -> None:
        """Buffer to device."""
        self._launch(self._scatters[load.group], load.group, load.destinations, buffer)

    def _kernel(self, name: str, group: int) -> WordKernel:
        return word_kernel(COPY_SOURCE, name, self._device[group].shape[1])

    def _launch(self, kernel: WordKernel, group: int, column: bytes, buffer: Any) -> None:
        ids = view(column)
        if len(ids):
            kernel.launch(len(ids), self._device[group], self._shipper.ship(ids), buffer)

    def _copy(self, group: int, count: int, *, host: int, device: int, at: int, out: bool) -> None:
        """`count` blocks between host block `host` and place `at` of blocks from the address `device` on."""
        runtime = self._cupy.cuda.runtime
        pages = self._host[group]
        block_bytes = pages.shape[1]
        host_address = pages.ctypes.data + int(host) * block_bytes
        device_address = device + int(at) * block_bytes
        stream = self._cupy.cuda.get_current_stream().ptr
        if out:
            kind, into, source = runtime.memcpyDeviceToHost, host_address, device_address
        else:
            kind, into, source = runtime.memcpyHostToDevice, device_address, host_address
        runtime.memcpyAsync(into, source, count * block_bytes, kind, stream)


def runs(one: Any, other: Any) -> list[tuple[int, int]]:
    """Half-open ranges of places between which both columns rise by one from each to the next."""
    if not len(one):
        return []
    breaks = np.flatnonzero((np.diff(one) != 1) | (np.diff(other) != 1)) + 1
    edges = [0, *breaks.tolist(), len(one)]
    return list(pairwise(edges))
