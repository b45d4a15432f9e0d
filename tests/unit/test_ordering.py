"""The order checker finds every pair of operations that nothing orders, and no other."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from data_plane.ordering import OrderChecker, Violation
from data_plane.streams.base import (
    NO_BLOCKS,
    Access,
    BlockSpan,
    Lane,
    SlotState,
    StagingBuffers,
    StreamEvent,
    TableRows,
    Tier,
)
from data_plane.streams.inline_streams import InlineStreams
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams
from data_plane.streams.sim_streams import SimStreams

SEEDS = range(12)


def column(*numbers: int) -> Any:
    return np.array(numbers, dtype=np.int32)


def blocks(*numbers: int, group: int = 0, tier: Tier = Tier.DEVICE) -> tuple[BlockSpan]:
    return (BlockSpan(tier, group, column(*numbers)),)


def reads(*numbers: int, **where: Any) -> Access:
    return Access(reads=blocks(*numbers, **where))


def writes(*numbers: int, **where: Any) -> Access:
    return Access(writes=blocks(*numbers, **where))


def fills(lane: Lane, *numbers: int) -> Access:
    return Access(writes=(StagingBuffers(lane, column(*numbers)),))


class Watched(OrderedStreams):
    """Inline streams under a checker of two groups, three blocks of the second in a parent."""

    def __init__(self) -> None:
        checker = OrderChecker([1, 3], STREAM_NAMES)
        super().__init__(InlineStreams(), checker)
        self.found = checker.violations


def nothing() -> None:
    pass


def test_two_streams_that_touch_one_block_without_an_event_are_reported_by_name() -> None:
    """Both pieces of work, both streams, and the blocks that both touch; the text says all of it."""
    streams = Watched()
    streams.write.enqueue(nothing, "store of round 3", reads(4, 5, 6))
    streams.forward.enqueue(nothing, "zero of round 3", writes(5, 6, 7))
    (found,) = streams.found
    assert found == Violation(
        "store of round 3", "write", "zero of round 3", "forward", "device blocks of group 0", (5, 6)
    )
    assert str(found) == (
        "nothing orders 'store of round 3' on the write stream and 'zero of round 3' on the forward stream, which both "
        "touch device blocks of group 0: 5, 6"
    )


def test_an_event_orders_what_was_before_it_and_what_comes_after_the_wait() -> None:
    """The wait covers what was recorded, and not what was enqueued on the other stream since."""
    streams = Watched()
    streams.load.enqueue(nothing, "load", writes(1))
    event = streams.load.record()
    streams.load.enqueue(nothing, "late load", writes(2))
    streams.forward.wait(event)
    streams.forward.enqueue(nothing, "forward", reads(1, 2))
    assert [(each.earlier, each.later, each.cells) for each in streams.found] == [("late load", "forward", (2,))]


def test_order_passes_through_a_third_stream() -> None:
    """Forward waits for load, write waits for forward: write lies behind load."""
    streams = Watched()
    streams.load.enqueue(nothing, "load", writes(1))
    streams.forward.wait(streams.load.record())
    streams.write.wait(streams.forward.record())
    streams.write.enqueue(nothing, "store", reads(1))
    assert streams.found == []


@pytest.mark.parametrize("see", [lambda event: event.wait_host(), lambda event: event.query()])
def test_what_the_host_saw_pass_lies_before_all_that_it_enqueues_then(see: Callable[[StreamEvent], object]) -> None:
    """An acknowledged store: its blocks may be given away, on any stream."""
    streams = Watched()
    streams.write.enqueue(nothing, "store", reads(1))
    see(streams.write.record())
    streams.write.enqueue(nothing, "next store", reads(2))
    streams.forward.enqueue(nothing, "zero", writes(1, 2))
    assert [(each.earlier, each.cells) for each in streams.found] == [("next store", (2,))]


def test_a_failed_wait_of_the_host_orders_as_well() -> None:
    """The event has passed: that the work before it failed is another matter."""
    streams = Watched()

    def fails() -> None:
        raise ValueError("broken")

    streams.write.enqueue(fails, "store", reads(1))
    with pytest.raises(ValueError, match="broken"):
        streams.write.record().wait_host()
    streams.forward.enqueue(nothing, "zero", writes(1))
    assert streams.found == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (reads(1), reads(1)),
        (writes(1), writes(2)),
        (writes(1), writes(1, tier=Tier.HOST)),
        (writes(1), writes(1, group=1)),  # blocks of parents 1 and 0
        (writes(4, group=1), writes(5, group=1)),  # two blocks of one group in one parent
        (Access(writes=(TableRows(0, column(1)),)), Access(writes=(TableRows(1, column(1)),))),
        (Access(writes=(TableRows(0, column(1)),)), Access(writes=(SlotState(column(1)),))),
        (fills(Lane.STORE, 1), fills(Lane.LOAD, 1)),
        (fills(Lane.LOAD, 1), fills(Lane.LOAD, 2)),
        (reads(4, group=1, tier=Tier.HOST), writes(1, tier=Tier.DEVICE)),  # parent 1 of the host, and of the device
        (writes(1), NO_BLOCKS),
        (writes(), writes()),
    ],
)
def test_what_does_not_conflict_needs_no_order(one: Access, other: Access) -> None:
    """Two readers; other blocks, tiers, tables and things."""
    streams = Watched()
    streams.write.enqueue(nothing, "one", one)
    streams.load.enqueue(nothing, "other", other)
    assert streams.found == []


@pytest.mark.parametrize(
    ("one", "other", "resource"),
    [
        (writes(1), reads(1), "device blocks of group 0"),
        (reads(1), writes(1), "device blocks of group 0"),
        (writes(1, tier=Tier.HOST), writes(1, tier=Tier.HOST), "host blocks of group 0"),
        (reads(5, group=1), writes(1), "device parents of group 1"),  # block 5 lies in parent 1 as block 1 does
        (reads(5, group=1, tier=Tier.HOST), writes(1, tier=Tier.HOST), "host parents of group 1"),
        (fills(Lane.STORE, 1, 2), fills(Lane.STORE, 0, 1), "staging buffers of the store lane"),
        (Access(writes=(TableRows(0, column(3, 1)),)), Access(reads=(TableRows(0, column(1)),)), "rows of the table"),
        (Access(writes=(SlotState(column(1)),)), Access(writes=(SlotState(column(1, 2)),)), "the state of slots"),
    ],
)
def test_what_conflicts_is_reported_once(one: Access, other: Access, resource: str) -> None:
    """Blocks by tier and group, two groups that share a parent in either tier, staging buffers, table rows, slots."""
    streams = Watched()
    streams.write.enqueue(nothing, "one", one)
    streams.load.enqueue(nothing, "other", other)
    (found,) = streams.found
    assert (found.earlier, found.later, found.cells) == ("one", "other", (1,))
    assert found.resource.startswith(resource)


def test_a_later_piece_of_the_same_stream_does_not_hide_an_earlier_one() -> None:
    """One wrote some of the blocks, the next read others: both are named, each with its own."""
    streams = Watched()
    streams.load.enqueue(nothing, "first", writes(1, 2))
    streams.load.enqueue(nothing, "second", reads(2, 3))
    streams.forward.enqueue(nothing, "zero", writes(1, 2, 3))
    found = {(each.earlier, each.cells) for each in streams.found}
    assert found == {("first", (1, 2)), ("second", (2, 3))}


@pytest.mark.parametrize("left_out", ["nothing", "store first", "load first", "store seen"])
def test_a_block_that_goes_to_the_host_and_back(left_out: str) -> None:
    """A copy to the host, its block given away, a copy back into another: each fence left out is told and felt.

    The host waits for the first copy before it lets another one overwrite the host's block.
    """
    outcomes = set()
    for seed in SEEDS:
        checker = OrderChecker([1], STREAM_NAMES)
        streams = OrderedStreams(SimStreams(seed), checker)
        device, host = np.array([0, 7, 8, 0]), np.zeros(2, dtype=np.int64)
        sees: list[int] = []
        streams.write.enqueue(partial(copy, device, 1, host, 1), "store", both(reads(1), writes(1, tier=Tier.HOST)))
        stored = streams.write.record()
        if left_out != "store first":
            streams.forward.wait(stored)
        streams.forward.enqueue(partial(device.__setitem__, 1, 99), "give away", writes(1))
        streams.load.wait(stored)
        streams.load.enqueue(partial(copy, host, 1, device, 3), "load", both(reads(1, tier=Tier.HOST), writes(3)))
        loaded = streams.load.record()
        if left_out != "load first":
            streams.forward.wait(loaded)
        streams.forward.enqueue(lambda device=device, sees=sees: sees.append(int(device[3])), "forward", reads(3))
        if left_out != "store seen":
            loaded.wait_host()
        streams.write.enqueue(partial(copy, device, 2, host, 1), "next", both(reads(2), writes(1, tier=Tier.HOST)))
        streams.close()
        outcomes.add((*sees, int(host[1])))
        pairs = {(each.earlier, each.later) for each in checker.violations}
        assert (
            pairs
            == {
                "nothing": set(),
                "store first": {("store", "give away")},
                "load first": {("load", "forward")},
                "store seen": {("load", "next")},
            }[left_out]
        )
    assert (outcomes == {(7, 8)}) == (left_out == "nothing")


def copy(source: Any, index: int, destination: Any, into: int) -> None:
    destination[into] = source[index]


def both(one: Access, other: Access) -> Access:
    return Access(reads=one.reads + other.reads, writes=one.writes + other.writes)
