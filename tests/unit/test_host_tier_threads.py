"""On real threads the copies run beside the forward, and are acknowledged when they are over, whatever else happens."""

from collections.abc import Callable
from queue import Queue
from threading import Barrier, Thread, current_thread
from threading import Event as Signal
from typing import Any

import pytest

from control_plane.messages import Event, ExtendResult, LoadBack, LoadBackDone, Store, StoreSourceGuard, WriteBackDone
from control_plane.messages.columns import Int32s, view
from control_plane.messages.wire import decode_events
from data_plane.batch.rows import Rows
from data_plane.builder import build_device
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.block_copies import BlockCopies
from data_plane.options import DeviceOptions
from data_plane.testing.plans import PlanWriter, Stored

WAIT_S = 30.0
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
OPTIONS = StampOptions(block_granularities=(4,), max_context_tokens=64)


class Watched:
    """Copies that call `on_step` with the name of each step before they do it, on the thread of its stream."""

    def __init__(self, inner: BlockCopies, on_step: Callable[[str], None]) -> None:
        self._inner = inner
        self._on_step = on_step

    def buffer(self, size_bytes: int) -> Any:
        return self._inner.buffer(size_bytes)

    def gather(self, store: Store, buffer: Any) -> None:
        self._on_step("gather")
        self._inner.gather(store, buffer)

    def write(self, store: Store, buffer: Any) -> None:
        self._on_step("write")
        self._inner.write(store, buffer)

    def write_directly(self, store: Store) -> None:
        self._on_step("write")
        self._inner.write_directly(store)

    def fill(self, load: LoadBack, buffer: Any) -> None:
        self._on_step("fill")
        self._inner.fill(load, buffer)

    def scatter(self, load: LoadBack, buffer: Any) -> None:
        self._on_step("scatter")
        self._inner.scatter(load, buffer)


class WatchedRunner(StampRunner):
    """A stamp model that calls `on_step` before each forward."""

    def __init__(self, on_step: Callable[[str], None]) -> None:
        super().__init__(OPTIONS)
        self._on_step = on_step

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        self._on_step("forward")
        return super().run(rows)


class Threaded:
    """A device on threads whose steps are watched; its events, each with the thread that delivered it."""

    def __init__(self, on_step: Callable[[str], None], *, deliver: Callable[[list[Event]], None] | None = None) -> None:
        options = DeviceOptions(
            model="stamp", prefix_granularity=4, max_batch_size=4, device_blocks=30, host_blocks=20, check_order=True
        )
        self.specs, self.handle = build_device(
            options, runner=WatchedRunner(on_step), copies=lambda inner: Watched(inner, on_step)
        )
        self.writer = PlanWriter(self.specs.groups, device_blocks=30, slots=4, host_blocks=20)
        self.events: Queue[tuple[Event, str]] = Queue()
        self._deliver = deliver
        self.handle.start(self._take)

    def _take(self, letter: bytes) -> None:
        events = decode_events(letter)
        if self._deliver is not None:
            self._deliver(events)
        for event in events:
            self.events.put((event, current_thread().name))

    def next(self) -> Event:
        return self.events.get(timeout=WAIT_S)[0]

    def run(self, extends: dict[int, int] | None = None, *decodes: int) -> None:
        self.handle.execute(self.writer.plan(extends, decodes))

    def stored(self, key: int) -> Stored:
        """A new request that computes PROMPT, and is on the host when this returns; it still holds its blocks."""
        self.writer.add(key, PROMPT)
        self.run({key: len(PROMPT)})
        stored = self.writer.store(key, len(PROMPT))
        self.run(None, key)
        found = [self.next() for _ in range(3)]
        assert sum(isinstance(event, WriteBackDone) for event in found) == 1
        return stored


@pytest.mark.parametrize("guard", StoreSourceGuard)
def test_a_store_and_a_load_back_both_run_while_a_forward_does(guard: StoreSourceGuard) -> None:
    """Three threads meet: the forward of a round, the copy of its store, and the next round's copy from the host.

    None of them goes on before all are there: if one waited for another, none would come.
    """
    meeting = Barrier(3)
    meets: set[str] = set()
    armed = Signal()

    def on_step(step: str) -> None:
        if armed.is_set() and step in ("forward", "write", "fill") and step not in meets:
            meets.add(step)
            meeting.wait(WAIT_S)

    device = Threaded(on_step)
    back = device.stored(1)
    device.writer.add(2, [7, 7, 7])
    device.run({2: 3})
    assert isinstance(device.next(), ExtendResult)
    device.writer.store(1, len(PROMPT), guard=guard)
    armed.set()
    device.run(None, 2)
    device.writer.add(3, [*PROMPT, 8], loads=back)
    device.run({3: 1})
    found = [device.next() for _ in range(4)]
    assert meets == {"forward", "write", "fill"}
    assert {type(event) for event in found} == {ExtendResult, WriteBackDone, LoadBackDone}
    assert all(event.success for event in found if isinstance(event, WriteBackDone | LoadBackDone))
    (token,) = view(next(e for e in reversed(found) if isinstance(e, ExtendResult)).tokens).tolist()
    assert token == stamp_continuation([*PROMPT, 8], 1, options=OPTIONS)[0]
    device.handle.close()
    assert device.handle.failure is None
    assert list(device.handle.violations) == []


def test_a_store_is_acknowledged_while_the_engine_is_idle() -> None:
    """Its copy is held until the round was answered and nothing else is left to do; then word comes by itself."""
    release = Signal()

    def on_step(step: str) -> None:
        assert step != "write" or release.wait(WAIT_S)

    device = Threaded(on_step)
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.writer.store(1, len(PROMPT))
    device.run(None, 1)
    assert [type(device.next()) for _ in range(2)] == [ExtendResult, ExtendResult]
    assert device.handle.stats().rounds_in_flight == 0
    assert device.events.empty()
    release.set()
    assert device.events.get(timeout=WAIT_S) == (WriteBackDone(1), "stores")
    device.handle.close()


def test_closing_waits_for_the_stores_that_are_out_and_answers_them() -> None:
    """Two stores are held when close is called; it returns once both are on the host and acknowledged."""
    release = Signal()

    def on_step(step: str) -> None:
        assert step != "write" or release.wait(WAIT_S)

    device = Threaded(on_step)
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    for guard in StoreSourceGuard:
        device.writer.store(1, len(PROMPT), guard=guard)
    device.run()
    assert isinstance(device.next(), ExtendResult)
    closing = Thread(target=device.handle.close)
    closing.start()
    assert closing.is_alive()
    assert device.events.empty()
    release.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    events = [device.next() for _ in range(2)]
    assert events == [WriteBackDone(1), WriteBackDone(2)]


def test_a_receiver_that_raises_at_an_acknowledgement_stops_the_device() -> None:
    """The planner would wait for that store for ever: the device says that something is wrong."""

    def deliver(events: list[Event]) -> None:
        if isinstance(events[0], WriteBackDone):
            raise RuntimeError("the mailbox is gone")

    device = Threaded(lambda step: None, deliver=deliver)
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.writer.store(1, len(PROMPT))
    device.run()
    device.handle.close()
    assert device.handle.failure is not None
    assert "the mailbox is gone" in device.handle.failure
