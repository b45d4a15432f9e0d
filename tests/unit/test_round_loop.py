"""The loop with a scripted device: no socket, no thread, no clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from control_plane import DeviceFailed, RequestRejected, Scheduler
from control_plane.loop.outbox import Output, OutputStream
from control_plane.loop.round_loop import RoundLoop
from control_plane.messages import FinishReason, RequestSpec
from control_plane.messages.columns import pack
from control_plane.testing.rounds import small_config
from control_plane.testing.simulated_device import SimulatedDevice


def _spec(name: str, prompt_tokens: int = 6, max_new_tokens: int | None = 3, **fields: object) -> RequestSpec:
    return RequestSpec(name, pack(range(prompt_tokens)), max_new_tokens, **fields)  # type: ignore[arg-type]


async def _all(stream: OutputStream) -> Output:
    """Everything of a stream, merged."""
    tokens: list[int] = []
    while True:
        output = await stream.next()
        tokens += output.tokens
        if output.reason is not None:
            return Output(tuple(tokens), output.reason, output.message)


@asynccontextmanager
async def _running(device: SimulatedDevice, **config: object) -> AsyncIterator[tuple[RoundLoop, Scheduler]]:
    scheduler = Scheduler(small_config(**config))
    loop = RoundLoop(scheduler, device)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(loop.run())
        yield loop, scheduler
        loop.close()


async def _settle() -> None:
    """Let the loop take what is there: nothing in it waits, so a few turns do."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("overlap_depth", [0, 1])
async def test_tokens_arrive_in_order_and_end_once(overlap_depth: int) -> None:
    """A submission comes back as its tokens and one reason."""
    async with _running(SimulatedDevice(answers_at_once=True), overlap_depth=overlap_depth) as (loop, scheduler):
        streams = [loop.submit(_spec(name)) for name in "abc"]
        outputs = await asyncio.gather(*(_all(stream) for stream in streams))
        assert [output.tokens for output in outputs] == [(k * 1000 + 6, k * 1000 + 7, k * 1000 + 8) for k in (1, 2, 3)]
        assert {output.reason for output in outputs} == {FinishReason.LENGTH}
        await _settle()
        assert scheduler.audit() == []
        assert loop.stats().open_streams == 0


async def test_a_stop_token_ends_and_is_the_last() -> None:
    """The stop token is part of the output, nothing after it is."""
    async with _running(SimulatedDevice(answers_at_once=True), overlap_depth=1) as (loop, _):
        output = await _all(loop.submit(_spec("a", max_new_tokens=20, stop_token_ids=(1008,))))
        assert output.tokens == (1006, 1007, 1008)
        assert output.reason is FinishReason.STOP


async def test_an_abort_ends_at_once_and_frees_with_the_next_round() -> None:
    """D6, R2.4: the result that is out when the client leaves reaches nobody."""
    device = SimulatedDevice()
    async with _running(device) as (loop, scheduler):
        stream = loop.submit(_spec("a"))
        await _settle()
        loop.abort(stream)
        loop.abort(stream)
        assert await _all(stream) == Output((), FinishReason.ABORT)
        device.land()
        await _settle()
        assert not scheduler.requests
        assert scheduler.stats().used_blocks == 0
        assert stream.take() is None


async def test_an_abort_before_the_first_round_never_enters() -> None:
    """B4: submit and abort in the same turn: the scheduler never hears of it."""
    device = SimulatedDevice()
    async with _running(device) as (loop, scheduler):
        stream = loop.submit(_spec("a"))
        loop.abort(stream)
        await _settle()
        assert (await _all(stream)).reason is FinishReason.ABORT
        assert not scheduler.requests
        assert not device.plans
        assert loop.stats().open_streams == 0


async def test_cancelling_a_queued_request_does_not_touch_the_running_one() -> None:
    """H3: with one slot, the queued ones leave and the running one gets all its tokens."""
    device = SimulatedDevice()
    async with _running(device, batch=1) as (loop, _):
        running = loop.submit(_spec("a", max_new_tokens=4))
        for name in "bc":
            queued = loop.submit(_spec(name))
            await _settle()
            loop.abort(queued)
        while not running.is_ended:
            device.land()
            await _settle()
        assert await _all(running) == Output((1006, 1007, 1008, 1009), FinishReason.LENGTH)


async def test_a_failed_forward_ends_its_requests_with_the_reason() -> None:
    """The message of the device reaches the client; the next request works."""
    device = SimulatedDevice(fail={2}, answers_at_once=True)
    async with _running(device) as (loop, _):
        output = await _all(loop.submit(_spec("a")))
        assert output == Output((1006,), FinishReason.ERROR, "forward 2 was told to fail")
        assert loop.failure is None
        assert (await _all(loop.submit(_spec("b")))).tokens == (2006, 2007, 2008)


async def test_a_result_behind_a_failure_reaches_nobody_of_it() -> None:
    """Both rounds that are out report before the loop takes a turn: the failed request's next token is not its own."""
    device = SimulatedDevice(fail={1})
    async with _running(device, overlap_depth=1) as (loop, scheduler):
        stream = loop.submit(_spec("a", stop_token_ids=(1007,)))
        await _settle()
        assert device.plans_out == 2
        device.land()
        device.land()
        assert await _all(stream) == Output((), FinishReason.ERROR, "forward 1 was told to fail")
        await _settle()
        assert loop.failure is None
        assert scheduler.audit() == []
        assert not scheduler.requests


async def test_results_behind_a_withheld_forward_do_not_count() -> None:
    """R7.5: both rounds report before the loop takes a turn; the request prefills again and says every token once."""
    device = SimulatedDevice(lose={1})
    async with _running(device, overlap_depth=1) as (loop, scheduler):
        stream = loop.submit(_spec("a"))
        await _settle()
        assert device.plans_out == 2
        device.land()
        device.land()
        await _settle()
        assert scheduler.stats().retractions == 1
        while not stream.is_ended:
            device.land()
            await _settle()
        assert await _all(stream) == Output((1006, 1007, 1008), FinishReason.LENGTH)


async def test_a_request_that_cannot_run_is_refused_at_once() -> None:
    """A1: the error is raised by submit, with the numbers; the loop does not see it."""
    async with _running(SimulatedDevice(), pool=4) as (loop, _):
        with pytest.raises(RequestRejected, match="limit_tokens=16"):
            loop.submit(_spec("a", prompt_tokens=40))
        with pytest.raises(RequestRejected, match="empty"):
            loop.submit(RequestSpec("b", b""))


async def test_closing_ends_everybody() -> None:
    """Nobody waits for ever for an engine that is gone; a later submission is told so."""
    device = SimulatedDevice()
    async with _running(device) as (loop, _):
        streams = [loop.submit(_spec("a")), loop.submit(_spec("b"))]
        await _settle()
        late = loop.submit(_spec("c"))
    for stream in [*streams, late]:
        assert (await _all(stream)).reason is FinishReason.ABORT
    with pytest.raises(DeviceFailed, match="closed"):
        loop.submit(_spec("d"))


async def test_a_fault_of_the_control_plane_is_never_silent() -> None:
    """An assertion in a round ends every request with an error, is raised to whoever runs the loop, and stays seen."""
    device = SimulatedDevice()
    scheduler = Scheduler(small_config())
    loop = RoundLoop(scheduler, device)
    running = asyncio.ensure_future(loop.run())
    stream = loop.submit(_spec("a"))
    await _settle()
    scheduler.resident.forwards_out[:] = 0
    device.land()
    with pytest.raises(AssertionError, match="no forward out"):
        await running
    output = await _all(stream)
    assert output.reason is FinishReason.ERROR
    assert "no forward out" in output.message
    assert loop.failure is not None


async def test_a_device_that_cannot_go_on_takes_no_more_requests() -> None:
    """Health is what the device says, too."""
    device = SimulatedDevice()
    async with _running(device) as (loop, _):
        device.failure = "the driver is gone"
        with pytest.raises(DeviceFailed, match="the driver is gone"):
            loop.submit(_spec("a"))


async def test_a_slow_reader_costs_nobody_a_round() -> None:
    """H10: what piles up is merged; nothing is lost, nothing waits."""
    async with _running(SimulatedDevice(answers_at_once=True), pool=200) as (loop, _):
        slow = loop.submit(_spec("a", max_new_tokens=100))
        await _all(loop.submit(_spec("b", max_new_tokens=120)))
        output = slow.take()
        assert output is not None
        assert output.tokens == tuple(1000 + position for position in range(6, 106))
        assert output.reason is FinishReason.LENGTH


async def test_cached_tokens_are_those_of_the_first_admission() -> None:
    """J1: the stream knows how much of its prompt the cache gave."""
    async with _running(SimulatedDevice(answers_at_once=True)) as (loop, _):
        await _all(loop.submit(_spec("a", prompt_tokens=14)))
        again = loop.submit(_spec("b", prompt_tokens=14))
        await _all(again)
        assert again.cached_tokens == 12


async def test_a_request_that_was_thrown_out_is_not_cached_twice() -> None:
    """J1: `b` hits nothing at first, is retracted, and finds its own pages: its client still reads 0 cached tokens."""
    async with _running(SimulatedDevice(answers_at_once=True), pool=12, batch=2) as (loop, scheduler):
        streams = [loop.submit(RequestSpec(name, pack(range(k, k + 20)), None)) for name, k in (("a", 0), ("b", 100))]
        await asyncio.gather(*(_all(stream) for stream in streams))
        assert scheduler.stats().retractions > 0
        assert [stream.cached_tokens for stream in streams] == [0, 0]


async def test_an_idle_loop_does_nothing() -> None:
    """No polling: with nothing to do the loop takes no turn at all."""
    async with _running(SimulatedDevice(answers_at_once=True)) as (loop, scheduler):
        await _all(loop.submit(_spec("a")))
        await _settle()
        calls = 0
        plan = scheduler.next_plan

        def counting():  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            return plan()

        scheduler.next_plan = counting  # type: ignore[method-assign]
        for _ in range(100):
            await asyncio.sleep(0)
        assert calls == 0


async def test_a_stall_is_reported_at_1024_rounds_and_at_every_doubling(caplog: pytest.LogCaptureFixture) -> None:
    """R5.8: live requests, no work, nothing in flight: counted, said with the reason, and never a change of plan."""
    async with _running(SimulatedDevice(answers_at_once=True)) as (loop, scheduler):
        scheduler._build_plan = lambda *phases: None  # type: ignore[assignment]  # phases that schedule nothing
        stream = loop.submit(_spec("stuck"))
        for _ in range(2100):
            loop._wake.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        reports = [record.getMessage() for record in caplog.records if "nothing moves" in record.getMessage()]
        assert [int(report.split()[2]) for report in reports] == [1024, 2048]
        assert "stuck: waiting, first in line: not tried yet" in reports[0]
        assert scheduler.stats().stalled_rounds >= 2048
        loop.abort(stream)
