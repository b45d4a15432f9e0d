"""What streams promise: order within one, order across two by an event only, errors carried by the next mark."""

from collections.abc import Callable, Iterator
from threading import Event, current_thread

import pytest

from control_plane.errors import ConfigError, DeviceFailed
from data_plane.cuda import has_cuda
from data_plane.ordering import OrderChecker
from data_plane.streams.base import Stream, Streams
from data_plane.streams.host_streams import HostStreams
from data_plane.streams.inline_streams import InlineStreams
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams
from data_plane.streams.sim_streams import SimStreams

WAIT_S = 30.0


def observed_streams() -> OrderedStreams:
    return OrderedStreams(SimStreams(seed=3), OrderChecker([1], STREAM_NAMES))


@pytest.fixture(params=[HostStreams, InlineStreams, SimStreams, observed_streams])
def streams(request: pytest.FixtureRequest) -> Iterator[Streams]:
    made: Streams = request.param()
    yield made
    made.close()


def fails(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_work_on_one_stream_runs_in_the_order_it_was_enqueued(streams: Streams) -> None:
    """A thousand pieces leave their numbers in order."""
    seen: list[int] = []
    for number in range(1000):
        streams.forward.enqueue(lambda number=number: seen.append(number), "count")
    streams.forward.record().wait_host()
    assert seen == list(range(1000))


def test_an_event_has_not_passed_before_the_work_before_it() -> None:
    """The worker is held inside a piece of work: the mark after it stays open until the worker is let go."""
    streams = HostStreams()
    started, release = Event(), Event()

    def hold() -> None:
        started.set()
        assert release.wait(WAIT_S)

    streams.forward.enqueue(hold, "hold")
    event = streams.forward.record()
    assert started.wait(WAIT_S)
    assert not event.query()
    release.set()
    event.wait_host()
    assert event.query()
    streams.close()


def test_a_stream_that_waits_runs_nothing_before_the_event_has_passed() -> None:
    """The forward stream waits for a mark of the load stream, which is held back; a third stream is not affected."""
    streams = HostStreams()
    release = Event()
    seen: list[str] = []
    streams.load.enqueue(lambda: release.wait(WAIT_S), "hold")
    streams.load.enqueue(lambda: seen.append("loaded"), "load")
    loaded = streams.load.record()
    streams.forward.wait(loaded)
    streams.forward.enqueue(lambda: seen.append("forward"), "forward")
    done = streams.forward.record()
    streams.write.enqueue(lambda: seen.append("written"), "write")
    streams.write.record().wait_host()
    assert seen == ["written"]
    assert not done.query()
    release.set()
    done.wait_host()
    assert seen == ["written", "loaded", "forward"]
    streams.close()


def test_each_host_stream_works_on_a_thread_of_its_own() -> None:
    """Copies can overlap the forward: three names, none of them the caller's."""
    streams = HostStreams()
    names: set[str] = set()
    for stream in (streams.forward, streams.write, streams.load):
        stream.enqueue(lambda: names.add(current_thread().name), "name")
        stream.record().wait_host()
    assert names == {"stream-forward", "stream-write", "stream-load"}
    streams.close()


def test_the_first_error_is_carried_by_the_next_mark_and_by_no_other(streams: Streams) -> None:
    """Two pieces fail, work goes on, the first error comes out of the mark after it, twice if asked twice."""
    seen: list[str] = []
    stream: Stream = streams.forward
    stream.record().wait_host()
    stream.enqueue(fails(ValueError("first")), "broken step")
    stream.enqueue(fails(KeyError("second")), "next step")
    stream.enqueue(lambda: seen.append("after"), "after")
    event = stream.record()
    for _ in range(2):
        with pytest.raises(ValueError, match="first") as raised:
            event.wait_host()
    assert "in 'broken step' on the forward stream" in raised.value.__notes__
    assert seen == ["after"]
    stream.record().wait_host()


def test_not_even_system_exit_ends_a_stream(streams: Streams) -> None:
    """A library that calls exit() must not take the worker with it."""
    streams.write.enqueue(fails(SystemExit(3)), "exit")
    failed = streams.write.record()
    with pytest.raises(SystemExit):
        failed.wait_host()
    seen: list[int] = []
    streams.write.enqueue(lambda: seen.append(1), "after")
    streams.write.record().wait_host()
    assert seen == [1]


def test_waiting_for_a_failed_event_orders_and_does_not_infect(streams: Streams) -> None:
    """The error stays with the mark it came with: the waiting stream's own mark is clean."""
    streams.load.enqueue(fails(ValueError("load")), "load")
    event = streams.load.record()
    streams.forward.wait(event)
    streams.forward.record().wait_host()


def test_closing_finishes_what_was_enqueued_and_refuses_more(streams: Streams) -> None:
    """A hundred pieces are done when close returns; closing again does nothing; later work is refused by name."""
    seen: list[int] = []
    for number in range(100):
        streams.write.enqueue(lambda number=number: seen.append(number), "count")
    streams.close()
    streams.close()
    assert seen == list(range(100))
    with pytest.raises(DeviceFailed, match="write stream is closed"):
        streams.write.enqueue(lambda: None, "late")


@pytest.mark.skipif(has_cuda(), reason="there is a CUDA device: tests/gpu tries it")
def test_without_a_device_cuda_streams_say_what_is_missing() -> None:
    """No half-made object: the constructor raises, and the message says what to do."""
    from data_plane.streams.cupy_streams import CupyStreams

    with pytest.raises(ConfigError, match="device='cpu'"):
        CupyStreams()
