"""The host's pages, the staging buffers, runs of blocks, and what a device is told about its host tier."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.errors import ConfigError
from data_plane.builder import build_device, describe_device
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import plan_layout
from data_plane.model.base import GroupLayout
from data_plane.ops.block_copies import runs
from data_plane.ops.host_tier import CopyInFlight
from data_plane.ops.staging import ALIGNMENT_BYTES, StagingRing
from data_plane.options import DeviceOptions
from data_plane.streams.inline_streams import InlineEvent

WIDE = GroupLayout("wide", "full", 16, 96)
NARROW = GroupLayout("narrow", "full", 8, 40)


def test_the_hosts_pages_lie_as_the_devices_do() -> None:
    """Parents of 480 bytes: block 5 of the wide group and block 12 of the narrow one both begin parent 1."""
    layout = plan_layout([WIDE, NARROW])
    pages = HostPages(layout, host_blocks=2, device="cpu")
    wide, narrow = pages.blocks(0), pages.blocks(1)
    assert (wide.shape, narrow.shape, pages.size_bytes) == ((15, 96), (36, 40), 3 * 480)
    wide[5, 0] = 7
    assert narrow[12, 0] == 7


def test_a_host_tier_beyond_all_memory_is_a_matter_of_configuration() -> None:
    """The answer names the setting, its value and what to do."""
    layout = plan_layout([GroupLayout("big", "full", 16, 2**20)])
    with pytest.raises(ConfigError, match=r"host_blocks=1099511627776 of 1048576 bytes .* lower host_blocks"):
        HostPages(layout, host_blocks=2**40, device="cpu")


def test_a_device_is_asked_for_a_host_tier_and_says_what_it_has() -> None:
    """None unless asked for; startup tells its size; a negative one is refused by name."""
    lines: list[str] = []
    options = DeviceOptions(model="stamp", device_blocks=3, host_blocks=7)
    specs, handle = build_device(options, progress=lines.append)
    handle.close()
    assert specs.host_blocks == 7
    assert lines[-1] == f"host tier: 7 parents of {specs.parent_bytes} bytes and the null one, 0.0 MiB"
    assert describe_device(DeviceOptions(model="stamp", device_blocks=3)).host_blocks == 0
    with pytest.raises(ConfigError, match="host_blocks=-1 must be at least 0"):
        build_device(DeviceOptions(model="stamp", host_blocks=-1))


def test_buffers_take_turns_and_grow_without_losing_what_is_on_its_way() -> None:
    """The outgrown buffer stays as it was and is not given back; its successor may not be filled before it is free."""
    made: list[Any] = []

    def make_array(size_bytes: int) -> Any:
        made.append(np.full(size_bytes, 1, dtype=np.uint8))
        return made[-1]

    ring = StagingRing(make_array, count=2)
    first, second = ring.next([100]), ring.next([300])
    assert (first.index, second.index) == (0, 1)
    assert [len(array) for array in made] == [256, 512]
    first.released = InlineEvent(None)
    (segment,) = first.segments([100])
    grown = ring.next([100, 700])
    assert (grown.index, grown.released, len(made[2])) == (0, first.released, 1024)
    assert segment.base is made[0]
    assert ring.next([400]) is second
    assert ring.next([]) is grown
    assert len(made) == 3


def test_an_outgrown_buffer_is_kept_for_the_device_may_still_use_it() -> None:
    """Nobody on the host holds it any more."""
    ring = StagingRing(lambda size_bytes: np.zeros(size_bytes, dtype=np.uint8), count=1)
    outgrown = weakref.ref(ring.next([100]).array)
    ring.next([1000])
    gc.collect()
    assert outgrown() is not None


def test_a_copy_whose_mark_carries_an_error_has_failed() -> None:
    """CUDA says so only when the copy is waited for; an earlier step's own error is the one that is told."""
    copy = CopyInFlight(1, "store 1 of round 1")
    copy.over = InlineEvent(RuntimeError("the device is gone"))
    copy.wait()
    assert str(copy.error) == "the device is gone"
    other = CopyInFlight(2, "store 2 of round 1")

    def gather() -> None:
        raise ValueError("no such block")

    other.attempt(gather)
    other.over = copy.over
    other.wait()
    assert isinstance(other.error, ValueError)


def test_what_raises_in_making_a_buffer_leaves_the_ring_as_it_was() -> None:
    """The next time it is the same buffer's turn."""
    is_full = [True]

    def make_array(size_bytes: int) -> Any:
        if is_full[0]:
            raise MemoryError
        return bytearray(size_bytes)

    ring = StagingRing(make_array)
    with pytest.raises(MemoryError):
        ring.next([1])
    is_full.clear()
    is_full.append(False)
    assert ring.next([1]).index == 0


@given(st.lists(st.integers(0, 2000), max_size=6))
def test_segments_lie_behind_each_other_where_a_kernel_may_write(sizes: list[int]) -> None:
    """Each as long as asked for, aligned, and none over another."""
    buffer = StagingRing(lambda size_bytes: np.zeros(size_bytes, dtype=np.uint8)).next(sizes)
    for segment in buffer.segments(sizes):
        segment += 1
    assert [len(segment) for segment in buffer.segments(sizes)] == sizes
    assert buffer.array.max(initial=0) <= 1
    begin = buffer.array.ctypes.data
    assert all((segment.ctypes.data - begin) % ALIGNMENT_BYTES == 0 for segment in buffer.segments(sizes))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_runs_are_the_longest_that_rise_on_both_sides(pairs: list[tuple[int, int]]) -> None:
    """Together they are the whole; inside each both columns rise by one; at no edge do both."""
    one, other = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    found = runs(one, other)
    assert [place for begin, end in found for place in range(begin, end)] == list(range(len(pairs)))

    def both_rise(place: int) -> bool:
        return bool(one[place] - one[place - 1] == 1 and other[place] - other[place - 1] == 1)

    for begin, end in found:
        assert begin < end
        assert all(both_rise(place) for place in range(begin + 1, end))
        assert begin == 0 or not both_rise(begin)
