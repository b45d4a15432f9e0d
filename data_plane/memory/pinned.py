"""Host memory that the device copies to and from: page-locked with CUDA, ordinary without.

`IdShipper` takes a round's ids to a CUDA device in one asynchronous copy.
"""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from control_plane.messages.columns import Int32s
from data_plane.cuda import load_cupy

SMALLEST_PAGE_IDS = 1024


def host_array(shape: tuple[int, ...], dtype: npt.DTypeLike, *, device: str) -> npt.NDArray[Any]:
    """An array of `shape`, zeroed, that an asynchronous copy of `device` may read or write."""
    if device == "cpu":
        return np.zeros(shape, dtype=dtype)
    load_cupy()
    import cupyx

    pinned: npt.NDArray[Any] = cupyx.zeros_pinned(shape, dtype=dtype)
    return pinned


def host_bytes(size_bytes: int, *, device: str) -> npt.NDArray[Any]:
    """So many bytes for the same use, and no more: for what is large and lives as long as the device.

    Raises MemoryError, or with CUDA a RuntimeError of its own, when it is too much.
    """
    if device == "cpu":
        return np.zeros(size_bytes, dtype=np.uint8)
    cuda = load_cupy().cuda
    # Not from the pool of pinned memory, which would round it up to a power of two.
    memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(size_bytes), 0)
    pinned: npt.NDArray[Any] = np.frombuffer(memory, dtype=np.uint8, count=size_bytes)
    return pinned


class _Page:
    """Pinned ids and the mark of the last copy that read them."""

    def __init__(self, capacity_ids: int, mark: Any) -> None:
        self.ids: Int32s = host_array((capacity_ids,), np.int32, device="cuda")
        self.copied = mark


class IdShipper:
    """Copies int32 ids to the device on the current stream, without waiting for it.

    A page is filled again only after the device has read it (behaviour D5: what was handed over does not change).
    """

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._pages: deque[_Page] = deque()

    def ship(self, ids: Int32s) -> Any:
        """`ids` (not empty) as an array on the device, once the current stream gets there."""
        stream = self._cupy.cuda.get_current_stream()
        page = self._free_page(len(ids))
        page.ids[: len(ids)] = ids
        shipped = self._cupy.empty(len(ids), dtype=np.int32)
        shipped.data.copy_from_host_async(page.ids.ctypes.data, shipped.nbytes, stream)
        page.copied.record(stream)
        self._pages.append(page)
        return shipped

    def _free_page(self, count: int) -> _Page:
        """The oldest page if its copy is over and it is large enough, else a new one."""
        if self._pages and self._pages[0].copied.done:
            page = self._pages.popleft()
            if len(page.ids) >= count:
                return page
        capacity = max(SMALLEST_PAGE_IDS, 1 << (count - 1).bit_length())
        return _Page(capacity, self._cupy.cuda.Event(disable_timing=True))
