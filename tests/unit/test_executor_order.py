"""Each edge that the executor's order rests on matters: without it the checker reports and the model says otherwise.

An edge is taken away by moving one kind of step to another stream and leaving out one of the two fences around it.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from control_plane.messages import ExecutionPlan
from data_plane.builder import build_device
from data_plane.executor import Executor
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.ops.table_edits import HostTableEdits
from data_plane.options import DeviceOptions
from data_plane.ordering import OrderChecker, Violation
from data_plane.streams.base import (
    NO_BLOCKS,
    Access,
    Stream,
    StreamEvent,
    Streams,
    Work,
)
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams
from data_plane.streams.sim_streams import SimStreams
from data_plane.testing.drive import Driver
from data_plane.testing.plans import PlanWriter
from tests.unit.stamp_device import Device

MIX = StampOptions(
    group_kinds=("full", "sliding", "state"),
    block_granularities=(4, 4, 4),
    packings=(1, 2, 1),
    windows=(0, 5, 0),
    max_context_tokens=64,
)
SEEDS = range(12)
KEYS = [[1, 2]] * 4 + [[3, 1], [1, 3], [1, 3], [4, 1], [1, 4], [1, 4]]  # whose tokens each round of the story samples


class Detour:
    """A forward stream whose steps of one kind take another stream, with fences before and after unless left out."""

    name = "forward"

    def __init__(self, streams: Streams, *, moved: str, left_out: str) -> None:
        self._forward, self._other = streams.forward, streams.load
        self._moved = moved
        self._left_out = left_out

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        if not label.startswith(self._moved):
            self._forward.enqueue(work, label, access)
            return
        if self._left_out != "before":
            self._other.wait(self._forward.record())
        self._other.enqueue(work, label, access)
        if self._left_out != "after":
            self._forward.wait(self._other.record())

    def record(self) -> StreamEvent:
        return self._forward.record()

    def wait(self, event: StreamEvent) -> None:
        self._forward.wait(event)


class DetourStreams:
    """Simulated streams under a checker, with a detour."""

    def __init__(self, inner: Streams, *, moved: str, left_out: str) -> None:
        self._inner = inner
        self.forward: Stream = Detour(inner, moved=moved, left_out=left_out)
        self.write, self.load = inner.write, inner.load

    def close(self) -> None:
        self._inner.close()


def story(writer: PlanWriter) -> list[ExecutionPlan]:
    """Requests 1 and 2; 2 ends and 3 gets its slot and its blocks in the next round; then 3 gives them to 4."""
    prompt = list(range(20, 31))
    plans = []
    writer.add(1, prompt)
    writer.add(2, prompt[:9])
    plans.append(writer.plan({1: 11, 2: 9}))
    plans += [writer.plan(decodes=[1, 2]) for _ in range(3)]
    for key in (3, 4):
        writer.release(key - 1)
        writer.add(key, [key, *prompt[:6]])
        plans.append(writer.plan({key: 7}, [1]))
        plans += [writer.plan(decodes=[1, key]) for _ in range(2)]
    return plans


def carried_out(seed: int, *, moved: str = "nothing", left_out: str = "nothing") -> tuple[list[Any], list[Violation]]:
    """What comes of each round of the story, one round always on its way; and what the checker says."""
    device = Device(MIX, blocks=24)
    checker = OrderChecker([group.packing for group in device.groups], STREAM_NAMES)
    executor = Executor(
        # Between the executor and the checker: as if the executor enqueued so.
        streams=DetourStreams(OrderedStreams(SimStreams(seed), checker), moved=moved, left_out=left_out),
        zeroing=device.zeroing,
        tables=HostTableEdits(device.tables),
        runner=device.runner,
        accesses=device.accesses(),
    )
    flights = []
    said: list[Any] = []

    def land() -> None:
        try:
            said.append(flights[len(said)].tokens().tolist())
        except Exception as error:
            said.append(repr(error))

    for plan in story(device.writer):
        flights.append(executor.execute(plan))
        if len(flights) > 1:
            land()
    land()
    return said, checker.violations


def steps_of(found: Violation) -> tuple[str, str, int]:
    """Which steps, and how many rounds lie between them."""
    (earlier, one), (later, other) = (label.split(" of round ") for label in (found.earlier, found.later))
    return earlier, later, int(other) - int(one)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_executors_order_leaves_nothing_to_the_streams(seed: int) -> None:
    """As late and as badly ordered as the streams may be: the same tokens as without streams, and no report."""
    alone = Device(MIX, blocks=24)
    for plan in story(alone.writer):
        alone.carry_out(plan)
    said, found = carried_out(seed)
    tokens: dict[int, list[int]] = {}
    for keys, row in zip(KEYS, said, strict=True):
        for key, token in zip(keys, row, strict=True):
            tokens.setdefault(key, []).append(token)
    assert tokens == alone.tokens
    assert found == []


EDGES = [
    # what moves, which fence goes, and the pair of steps (with the rounds between them) that has no order then
    ("zero", "before", ("forward", "zero", 1)),
    ("zero", "after", ("zero", "forward", 0)),
    ("tables", "before", ("forward", "tables", 1)),
    ("tables", "after", ("tables", "forward", 0)),
    ("bindings", "before", ("forward", "bindings", 1)),
    ("bindings", "after", ("bindings", "forward", 0)),
    ("forward", "before", ("zero", "forward", 0)),
    ("forward", "before", ("tables", "forward", 0)),
    ("forward", "before", ("bindings", "forward", 0)),
    ("forward", "after", ("forward", "zero", 1)),
    ("forward", "after", ("forward", "tables", 1)),
    ("forward", "after", ("forward", "bindings", 1)),
]


@pytest.mark.parametrize(("moved", "left_out", "pair"), EDGES)
def test_every_edge_that_is_taken_away_is_reported(moved: str, left_out: str, pair: tuple[str, str, int]) -> None:
    """Whatever order the streams happen to choose: the report is about what could be."""
    for seed in SEEDS:
        _, found = carried_out(seed, moved=moved, left_out=left_out)
        assert pair in {steps_of(each) for each in found}
        assert all(moved in (steps_of(each)[:2]) for each in found)


@pytest.mark.parametrize(("moved", "left_out"), sorted({edge[:2] for edge in EDGES}))
def test_every_edge_that_is_taken_away_changes_what_is_said(moved: str, left_out: str) -> None:
    """Some order of the streams makes the model find what it should not, or the tokens are not there in time."""
    right, _ = carried_out(0)
    assert any(carried_out(seed, moved=moved, left_out=left_out)[0] != right for seed in SEEDS)


@pytest.mark.parametrize("moved", ["zero", "tables", "bindings", "forward"])
def test_a_step_on_another_stream_between_two_fences_is_in_order(moved: str) -> None:
    """Nothing to report, nothing changed: it is the edges that count, not the stream."""
    right, _ = carried_out(0)
    for seed in SEEDS:
        assert carried_out(seed, moved=moved) == (right, [])


def test_a_device_with_threads_checks_its_order_when_asked_to() -> None:
    """Real threads, rounds that overlap: the same tokens, nothing found; and without the flag nobody looks."""
    options = DeviceOptions(model="stamp", prefix_granularity=4, device_blocks=40, max_context_tokens=64)
    said = []
    for check_order in (True, False):
        specs, device = build_device(replace(options, check_order=check_order), runner=StampRunner(MIX))
        driver = Driver(specs, device)
        said.append(driver.generate({1: [5, 6, 7], 2: [8] * 9}, 12))
        device.close()
        assert list(device.violations) == []
    assert said[0] == said[1]
