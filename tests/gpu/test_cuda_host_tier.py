"""Copies between the tiers on CUDA: the kernels, the asynchronous copies, their order and their overlap."""

from typing import Any

import numpy as np
import pytest

from control_plane.messages import LoadBack, Store, StoreSourceGuard
from control_plane.messages.columns import pack
from data_plane.accesses import NoAccesses
from data_plane.builder import build_device
from data_plane.lost import Lost
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import CudaTables
from data_plane.model.base import GroupLayout
from data_plane.ops.block_copies import CudaBlockCopies
from data_plane.ops.faulty_copies import CopyStep, FaultyCopies
from data_plane.ops.host_tier import StreamedHostTier
from data_plane.options import DeviceOptions
from data_plane.streams.base import Streams
from data_plane.testing.drive import Driver
from tests.gpu.test_cuda_device import SumRunner, expected

# The first is a whole number of 16-byte words, the second is not.
GROUPS = (GroupLayout("wide", "full", 16, 4096), GroupLayout("odd", "full", 8, 24))
DEVICE_PARENTS, HOST_PARENTS = 5, 4
ORDERED, PINNED = StoreSourceGuard.STREAM_ORDERED, StoreSourceGuard.PINNED_UNTIL_ACK


class Tiers:
    """Both tiers, filled with different noise; `device` and `host` give the bytes of each as a group sees them."""

    def __init__(self, streams: Streams) -> None:
        layout = plan_layout(GROUPS)
        self._device_counts = [(DEVICE_PARENTS + 1) * group.packing for group in layout.groups]
        self._tables = CudaTables(slots=2, widths=[8, 8], block_counts=self._device_counts)
        arena = Arena(layout, device_blocks=DEVICE_PARENTS, device="cuda")
        self._memory = ArenaMemory(layout, arena, self._tables)
        self._pages = HostPages(layout, host_blocks=HOST_PARENTS, device="cuda")
        chance = np.random.default_rng(2)
        self._memory.blocks(0)[:] = self._cupy().asarray(
            chance.integers(0, 256, size=self._memory.blocks(0).shape, dtype=np.uint8)
        )
        self._pages.blocks(0)[:] = chance.integers(0, 256, size=self._pages.blocks(0).shape, dtype=np.uint8)
        self._cupy().cuda.Device().synchronize()
        self.copies = CudaBlockCopies(self._memory, self._pages, groups=2)
        self.tier = StreamedHostTier(
            streams=streams,
            copies=self.copies,
            accesses=NoAccesses(),
            lost=Lost(layout.groups, self._tables),
            block_bytes=[group.block_bytes for group in layout.groups],
            device_counts=self._device_counts,
            host_counts=[(HOST_PARENTS + 1) * group.packing for group in layout.groups],
        )

    def device(self, group: int) -> Any:
        return self._memory.blocks(group).get()

    def host(self, group: int) -> Any:
        return self._pages.blocks(group).copy()

    def clear(self, group: int, blocks: list[int]) -> None:
        """On the current stream."""
        self._memory.blocks(group)[self._cupy().asarray(blocks)] = 0

    @staticmethod
    def _cupy() -> Any:
        from data_plane.cuda import load_cupy

        return load_cupy()


@pytest.mark.parametrize("guard", StoreSourceGuard)
@pytest.mark.parametrize(
    ("group", "sources", "destinations"),
    [(0, [5, 2, 3, 4], [1, 4, 3, 2]), (0, [1, 2, 3], [2, 3, 4]), (1, [200, 201, 900, 171], [300, 301, 302, 500])],
)
def test_a_store_and_a_load_back_move_the_named_blocks_and_no_others(
    streams: Streams, guard: StoreSourceGuard, group: int, sources: list[int], destinations: list[int]
) -> None:
    """Both tiers compared byte by byte, after the way there and after the way back into other blocks."""
    tiers = Tiers(streams)
    device, host = tiers.device(group), tiers.host(group)
    (copy,) = tiers.tier.store(1, [Store(1, guard, group, pack(sources), pack(destinations))])
    copy.wait()
    assert copy.error is None
    host[destinations] = device[sources]
    assert (tiers.host(group) == host).all()
    assert (tiers.device(group) == device).all()
    into = sources[::-1]
    (back,) = tiers.tier.load_back(2, [LoadBack(2, group, pack(destinations), pack(into))])
    streams.forward.record().wait_host()
    assert back.error is None
    device[into] = host[destinations]
    assert (tiers.device(group) == device).all()
    assert (tiers.host(group) == host).all()


def test_a_slow_copy_to_the_host_holds_no_forward_back(streams: Streams, hold: Any) -> None:
    """The write stream is held: the blocks are gathered, cleared, and the forward stream is done; then it copies."""
    tiers = Tiers(streams)
    device = tiers.device(0)
    store = Store(1, ORDERED, 0, pack([2, 3]), pack([1, 2]))
    # Loading kernels may wait for the device, so all are used once before anything is held.
    tiers.tier.store(1, [store])[0].wait()
    streams.forward.enqueue(lambda: tiers.clear(0, [5]), "warm up")
    streams.forward.record().wait_host()
    streams.write.enqueue(hold, "hold")
    (copy,) = tiers.tier.store(2, [Store(2, ORDERED, 0, pack([2, 3]), pack([3, 4]))])
    streams.forward.enqueue(lambda: tiers.clear(0, [2, 3]), "give away")
    streams.forward.record().wait_host()
    assert not copy.has_passed()
    hold.release()
    copy.wait()
    assert (tiers.host(0)[[3, 4]] == device[[2, 3]]).all()
    assert not tiers.device(0)[[2, 3]].any()


def test_a_load_back_overlaps_the_forward_before_it(streams: Streams, hold: Any) -> None:
    """The forward stream is held: the copy to the device is done; what it fills changes when the forward is over."""
    tiers = Tiers(streams)
    device = tiers.device(0)
    tiers.tier.load_back(1, [LoadBack(1, 0, pack([1]), pack([5]))])
    streams.forward.record().wait_host()
    streams.forward.enqueue(hold, "hold")
    held = streams.forward.record()
    tiers.tier.load_back(2, [LoadBack(2, 0, pack([3, 4]), pack([1, 2]))])
    streams.load.record().wait_host()
    assert not held.query()
    hold.release()
    streams.forward.record().wait_host()
    device[[5, 1, 2]] = tiers.host(0)[[1, 3, 4]]
    assert (tiers.device(0) == device).all()


def test_what_is_on_its_way_is_not_overwritten_when_buffers_are_used_again(streams: Streams, hold: Any) -> None:
    """The write stream is held while ten plans store ever more blocks and clear them: all of them arrive whole."""
    tiers = Tiers(streams)
    device, host = tiers.device(1), tiers.host(1)
    tiers.tier.store(1, [Store(1, ORDERED, 1, pack([1]), pack([1]))])[0].wait()
    streams.forward.enqueue(lambda: tiers.clear(1, [1]), "warm up")
    streams.forward.record().wait_host()
    streams.write.enqueue(hold, "hold")
    copies, first = [], 2
    for count in range(1, 11):
        blocks = list(range(first, first + count))
        first += count
        copies += tiers.tier.store(count, [Store(count, ORDERED, 1, pack(blocks), pack(blocks))])
        streams.forward.enqueue(lambda blocks=blocks: tiers.clear(1, blocks), "give away")
    hold.release()
    for copy in copies:
        copy.wait()
        assert copy.error is None
    streams.forward.record().wait_host()
    host[1:first] = device[1:first]
    assert (tiers.host(1) == host).all()
    assert not tiers.device(1)[1:first].any()


@pytest.mark.parametrize("guard", StoreSourceGuard)
def test_a_request_goes_on_from_what_came_back_from_the_host(guard: StoreSourceGuard) -> None:
    """End to end: stored, its blocks given to another, loaded into others, continued; three times over."""
    options = DeviceOptions(
        model="sum", device="cuda", max_batch_size=4, device_blocks=8, host_blocks=6, prefix_granularity=4
    )
    specs, handle = build_device(options, runner=SumRunner())
    driver = Driver(specs, handle)
    for wave in range(3):
        prompt, key = [wave * 50 + index for index in range(8)], 10 * wave
        driver.writer.add(key, prompt)
        driver.send(driver.writer.plan({key: 8}))
        stored = driver.writer.store(key, 8, guard=guard)
        if guard is ORDERED:
            driver.writer.release(key)
        driver.writer.add(key + 1, [1, 2, 3])
        driver.send(driver.writer.plan({key + 1: 3}))
        driver.land()
        driver.land_copies(stored.ops)
        if guard is PINNED:
            driver.writer.release(key)
        longer = prompt + driver.tokens[key]
        driver.writer.add(key + 2, longer, loads=stored)
        driver.send(driver.writer.plan({key + 2: 1}, decodes=[key + 1]))
        for _ in range(4):
            driver.send(driver.writer.plan(decodes=[key + 1, key + 2]))
        driver.land()
        assert driver.tokens[key] + driver.tokens[key + 2] == expected(prompt, 6)
        assert driver.tokens[key + 1] == expected([1, 2, 3], 6)
        driver.writer.release(key + 1)
        driver.writer.release(key + 2)
        driver.writer.drop(stored)
    handle.close()
    assert all(driver.copied.values())
    assert handle.failure is None


def test_a_copy_that_fails_fails_alone() -> None:
    """A store and a load-back that raise are answered so; the request beside them says what it should."""
    options = DeviceOptions(
        model="sum", device="cuda", max_batch_size=4, device_blocks=12, host_blocks=6, prefix_granularity=4
    )
    specs, handle = build_device(
        options,
        runner=SumRunner(),
        copies=lambda inner: FaultyCopies(inner, fail_ops={1, 3}, steps={CopyStep.GATHER, CopyStep.FILL}),
    )
    driver = Driver(specs, handle)
    driver.writer.add(1, list(range(8)))
    driver.send(driver.writer.plan({1: 8}))
    stored = [driver.writer.store(1, 8) for _ in range(2)]
    driver.send(driver.writer.plan(decodes=[1]))
    driver.land_copies((*stored[0].ops, *stored[1].ops))
    driver.writer.add(2, list(range(9)), loads=stored[1])
    driver.send(driver.writer.plan({2: 1}, decodes=[1]))
    driver.land()
    handle.close()
    assert driver.copied == {1: False, 2: True, 3: False}
    assert driver.tokens[1] == expected(list(range(8)), 3)
    assert handle.failure is None
