"""CUDA streams keep the same words as the others."""

from typing import Any

import numpy as np
import pytest

from control_plane.errors import DeviceFailed
from data_plane.streams.base import Streams


def test_an_event_passes_only_when_the_device_gets_there(cupy: Any, streams: Streams, hold: Any) -> None:
    """The stream is held on the device: enqueueing returns, the mark is open; released, it passes."""
    numbers = cupy.zeros(1000, dtype=np.int32)
    numbers += 0
    cupy.cuda.Device().synchronize()

    def add() -> None:
        cupy.add(numbers, np.int32(1), out=numbers)

    streams.forward.enqueue(add, "warm up")
    streams.forward.record().wait_host()
    streams.forward.enqueue(hold, "hold")
    streams.forward.enqueue(add, "add")
    event = streams.forward.record()
    assert not event.query()
    hold.release()
    event.wait_host()
    assert event.query()
    assert int(numbers.get()[0]) == 2


def test_a_stream_that_waits_sees_what_was_written_before_the_event(cupy: Any, streams: Streams, hold: Any) -> None:
    """The load stream is held before it writes; the forward stream, which waits for its mark, reads the new values."""
    source, target = cupy.zeros(1 << 16, dtype=np.int32), cupy.zeros(1 << 16, dtype=np.int32)
    cupy.copyto(target, source)
    source.fill(0)
    cupy.cuda.Device().synchronize()
    streams.load.enqueue(hold, "hold")
    streams.load.enqueue(lambda: source.fill(7), "load")
    streams.forward.wait(streams.load.record())
    streams.forward.enqueue(lambda: cupy.copyto(target, source), "read")
    done = streams.forward.record()
    assert not done.query()
    hold.release()
    done.wait_host()
    assert (target.get() == 7).all()


def test_torch_and_cupy_work_in_one_order_on_one_stream(cupy: Any, streams: Streams) -> None:
    """Alternating kernels of the two on the same memory: a thousand steps none of which is lost."""
    import torch

    numbers = cupy.zeros(1 << 12, dtype=np.int32)
    shared = torch.from_dlpack(numbers)
    cupy.cuda.Device().synchronize()
    for _ in range(500):
        streams.forward.enqueue(lambda: cupy.multiply(numbers, np.int32(3), out=numbers), "cupy")
        streams.forward.enqueue(lambda: shared.add_(1), "torch")
    streams.forward.record().wait_host()
    expected = 0
    for _ in range(500):
        expected = (expected * 3 + 1) % 2**32
    assert int(numbers.view(np.uint32).get()[17]) == expected


def test_errors_are_carried_and_closing_refuses_work(streams: Streams) -> None:
    """What the enqueuing code raises comes out of the next mark; a closed stream takes nothing."""

    def broken() -> None:
        raise ValueError("no such kernel")

    streams.write.enqueue(broken, "copy")
    failed = streams.write.record()
    with pytest.raises(ValueError, match="no such kernel"):
        failed.wait_host()
    streams.write.record().wait_host()
    streams.close()
    with pytest.raises(DeviceFailed, match="write stream is closed"):
        streams.write.enqueue(broken, "late")
