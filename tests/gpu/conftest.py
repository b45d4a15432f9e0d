"""Every test here needs a CUDA device, cupy and a CUDA build of torch; without them it is skipped, and says so."""

from collections.abc import Iterator
from typing import Any

import pytest

from data_plane.cuda import has_cuda, load_cupy
from data_plane.streams.base import Streams


@pytest.fixture(scope="session", autouse=True)
def _needs_a_gpu() -> None:
    if not has_cuda():
        pytest.skip("no CUDA device that cupy and torch can use")


@pytest.fixture
def cupy() -> Any:
    """The module."""
    return load_cupy()


@pytest.fixture
def streams() -> Iterator[Streams]:
    """CUDA streams, closed afterwards."""
    from data_plane.streams.cupy_streams import CupyStreams

    made = CupyStreams()
    yield made
    made.close()


HOLD_SOURCE = r"""
extern "C" __global__ void hold(const unsigned long long flag, const long long limit) {
    volatile const int* released = (volatile const int*)flag;
    const long long began = clock64();
    while (*released == 0 && clock64() - began < limit) {}
}
"""


class Hold:
    """Keeps a stream busy until `release`, or for some seconds if that never comes."""

    def __init__(self, cupy: Any) -> None:
        import cupyx

        self._cupy = cupy
        self._flag = cupyx.zeros_pinned(1, dtype="int32")
        self._kernel = cupy.RawKernel(HOLD_SOURCE, "hold")
        # Loading a kernel may wait for the device, so that is done before anything is held.
        self._kernel((1,), (1,), (cupy.uint64(self._flag.ctypes.data), cupy.int64(0)))
        cupy.cuda.Device().synchronize()

    def __call__(self) -> None:
        """On the current stream."""
        self._kernel((1,), (1,), (self._cupy.uint64(self._flag.ctypes.data), self._cupy.int64(2**33)))

    def release(self) -> None:
        """Let it go on."""
        self._flag[0] = 1


@pytest.fixture
def hold(cupy: Any) -> Iterator[Hold]:
    """A kernel that waits for the host."""
    made = Hold(cupy)
    yield made
    made.release()
    cupy.cuda.Device().synchronize()
