"""The device as the loop sees it: encoded plans in, encoded events out, in order, and always an answer."""

import random
from collections.abc import Callable, Iterator
from queue import Queue
from threading import Event as Signal
from threading import current_thread
from threading import enumerate as all_threads

import numpy as np
import pytest

from control_plane.errors import DeviceFailed
from control_plane.messages import Event, ExecutionPlan, ExtendResult, ForwardFailed, Sampling, TableEdit
from control_plane.messages.columns import Int32s, pack, view
from control_plane.messages.wire import decode_events, decode_plan, encode_plan
from data_plane.batch.rows import Rows
from data_plane.builder import build_device
from data_plane.handle import DeviceHandle
from data_plane.model.base import ModelRunner
from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.options import DeviceOptions
from data_plane.testing.plans import PlanWriter

WAIT_S = 30.0
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8]


class Served:
    """A started device, a writer of plans for it, and the events that it delivered."""

    def __init__(self, runner: ModelRunner | None = None, *, inline: bool = False) -> None:
        options = DeviceOptions(model="stamp", max_batch_size=4, device_blocks=40, max_context_tokens=128)
        self.specs, self.handle = build_device(options, runner=runner, inline=inline)
        self.writer = PlanWriter(self.specs.groups, device_blocks=40, slots=4)
        self.events: Queue[Event] = Queue()
        self.threads: set[str] = set()
        self.handle.start(self._deliver)

    def _deliver(self, payload: bytes) -> None:
        self.threads.add(current_thread().name)
        for event in decode_events(payload):
            self.events.put(event)

    def next(self) -> Event:
        return self.events.get(timeout=WAIT_S)


@pytest.fixture(params=[False, True], ids=["threads", "inline"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(inline=request.param)
    yield made
    made.handle.close()


class HeldRunner(StampRunner):
    """Computes nothing before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.release = Signal(), Signal()

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        self.started.set()
        assert self.release.wait(WAIT_S)
        return super().run(rows)


def test_a_request_is_served_chunk_by_chunk_then_token_by_token(served: Served) -> None:
    """An intermediate chunk reports nothing but its arrival; the last chunk and each decode one token."""
    writer, handle = served.writer, served.handle
    writer.add(7, PROMPT)
    plans = [writer.plan({7: 10}), writer.plan({7: 9}), *[writer.plan(decodes=[7]) for _ in range(5)]]
    for plan in plans:
        handle.execute(plan)
    expected = stamp_continuation(PROMPT, 6)
    assert served.next() == ExtendResult(1, pack([7]), pack([0]), b"")
    for round, token in enumerate(expected, start=2):
        assert served.next() == ExtendResult(round, pack([7]), pack([1]), pack([token]))
    handle.close()
    assert handle.stats().rounds_executed == 7
    assert handle.stats().rounds_in_flight == handle.stats().rounds_failed == 0
    assert handle.stats().arena_bytes == 41 * served.specs.parent_bytes
    assert handle.failure is None


def test_counts_tell_which_rows_of_a_mixed_batch_have_tokens(served: Served) -> None:
    """A chunk, a completing prompt and a decode in one round: 0, 1 and 1 tokens, in row order."""
    writer, handle = served.writer, served.handle
    writer.add(1, PROMPT)
    handle.execute(writer.plan({1: len(PROMPT)}))
    writer.add(2, PROMPT[:5])
    writer.add(3, PROMPT[:8])
    handle.execute(writer.plan({3: 4, 2: 5}, decodes=[1]))
    served.next()
    event = served.next()
    assert isinstance(event, ExtendResult)
    assert view(event.keys).tolist() == [3, 2, 1]
    assert view(event.counts).tolist() == [0, 1, 1]
    second = stamp_continuation(PROMPT[:5], 1)[0]
    assert view(event.tokens).tolist() == [second, stamp_continuation(PROMPT, 2)[1]]


def test_answers_come_in_the_order_of_the_plans(served: Served) -> None:
    """Two hundred rounds handed over at once are answered 1, 2, 3, ..., with tokens of the right requests."""
    writer, handle = served.writer, served.handle
    chance = random.Random(5)
    for key in (1, 2, 3, 4):
        writer.add(key, PROMPT[key:], sampling=Sampling(temperature=1.0, seed=key))
    handle.execute(writer.plan({key: len(PROMPT) - key for key in (1, 2, 3, 4)}))
    for _ in range(199):
        handle.execute(writer.plan(decodes=chance.sample([1, 2, 3, 4], 2)))
    tokens: dict[int, list[int]] = {key: [] for key in (1, 2, 3, 4)}
    for round in range(1, 201):
        event = served.next()
        assert isinstance(event, ExtendResult)
        assert event.round == round
        for key, token in zip(view(event.keys).tolist(), view(event.tokens).tolist(), strict=True):
            tokens[key].append(token)
    for key, found in tokens.items():
        sampling = Sampling(temperature=1.0, seed=key)
        assert found == stamp_continuation(PROMPT[key:], len(found), sampling=sampling)


def test_a_plan_that_was_handed_over_does_not_change() -> None:
    """D5: while round 1 is held, its plan, round 2's and all their numbers are gone from the caller's side.

    Columns are immutable bytes and what is carried out was decoded from a copy; the objects share nothing.
    """
    runner = HeldRunner()
    served = Served(runner)
    prompt = np.array(PROMPT, dtype=np.int32)
    served.writer.add(1, prompt.tolist())
    plan = served.writer.plan({1: len(PROMPT)})
    assert plan.forward is not None
    copy = decode_plan(encode_plan(plan))
    assert copy == plan
    assert copy.forward is not plan.forward
    served.handle.execute(plan)
    assert runner.started.wait(WAIT_S)
    prompt[:] = 0
    with pytest.raises(AttributeError):
        plan.round = 9
    with pytest.raises(ValueError, match="read-only"):
        view(plan.forward.input_ids)[0] = 0
    served.writer.release(1)
    served.writer.add(2, [8, 8, 8])
    served.handle.execute(served.writer.plan({2: 3}))
    runner.release.set()
    assert served.next() == ExtendResult(1, pack([1]), pack([1]), pack(stamp_continuation(PROMPT, 1)))
    assert served.next() == ExtendResult(2, pack([2]), pack([1]), pack(stamp_continuation([8, 8, 8], 1)))
    served.handle.close()


def test_handing_over_never_waits_for_the_device() -> None:
    """The model is held in round 1: three more rounds are taken at once, and all four are in flight."""
    runner = HeldRunner()
    served = Served(runner)
    served.writer.add(1, PROMPT)
    served.handle.execute(served.writer.plan({1: len(PROMPT)}))
    for _ in range(3):
        served.handle.execute(served.writer.plan(decodes=[1]))
    assert served.handle.stats().rounds_in_flight == 4
    assert served.events.empty()
    runner.release.set()
    served.handle.close()
    assert served.handle.stats().rounds_in_flight == 0
    assert served.events.qsize() == 4
    assert served.threads == {"completion"}


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
@pytest.mark.parametrize("where", ["fail_rounds", "fail_results"])
def test_a_model_that_fails_fails_its_round_and_no_other(where: str, inline: bool) -> None:
    """Round 2 raises, when it is run or when its tokens are read; its requests end and the next one is served."""
    served = Served(FaultyRunner(StampRunner(), **{where: {2}}), inline=inline)
    writer = served.writer
    writer.add(1, PROMPT)
    served.handle.execute(writer.plan({1: len(PROMPT)}))
    served.handle.execute(writer.plan(decodes=[1]))
    writer.release(1)
    writer.add(2, PROMPT[:7])
    served.handle.execute(writer.plan({2: 7}))
    assert isinstance(served.next(), ExtendResult)
    failed = served.next()
    assert isinstance(failed, ForwardFailed)
    assert failed.round == 2
    assert "InjectedFault" in failed.message
    assert served.next() == ExtendResult(3, pack([2]), pack([1]), pack(stamp_continuation(PROMPT[:7], 1)))
    assert served.handle.failure is None
    assert served.handle.stats().rounds_failed == 1
    served.handle.close()


def test_a_failed_round_does_not_spread_to_requests_that_share_the_next_batch() -> None:
    """Round 2, a chunk of request 1, fails while round 3 is already there with 1 and 2: request 2 is served right."""
    served = Served(FaultyRunner(StampRunner(), fail_rounds={2}))
    writer = served.writer
    writer.add(1, PROMPT)
    writer.add(2, PROMPT[:6])
    plans = [writer.plan({2: 6}), writer.plan({1: len(PROMPT)}), writer.plan(decodes=[1, 2])]
    for plan in plans:
        served.handle.execute(plan)
    assert isinstance(served.next(), ExtendResult)
    assert isinstance(served.next(), ForwardFailed)
    event = served.next()
    assert isinstance(event, ExtendResult)
    assert view(event.tokens).tolist()[1] == stamp_continuation(PROMPT[:6], 2)[1]
    served.handle.close()


@pytest.mark.parametrize("inline", [False, True], ids=["threads", "inline"])
def test_a_plan_that_cannot_be_stops_the_device_which_then_answers_every_plan(inline: bool) -> None:
    """A table edit for a slot that does not exist: that round, with or without a batch, and all later ones fail."""
    served = Served(inline=inline)
    served.writer.add(1, PROMPT)
    served.handle.execute(served.writer.plan({1: len(PROMPT)}))
    wrong = ExecutionPlan(2, (), (), (), (TableEdit(99, 0, 0, b""),), (), None, None, None, ())
    served.handle.execute(wrong)
    assert isinstance(served.next(), ExtendResult)
    reason = "the device stopped in round 2: PlanFault: table edit: slot 99 of 4"
    assert served.next() == ForwardFailed(2, reason)
    assert served.handle.failure == reason
    for _ in range(2):
        served.handle.execute(served.writer.plan(decodes=[1]))
    assert [served.next(), served.next()] == [ForwardFailed(2, reason), ForwardFailed(3, reason)]
    assert served.handle.stats().rounds_failed == 3
    served.handle.close()


def test_a_receiver_that_raises_stops_the_device_and_is_not_taken_for_success() -> None:
    """The answer to round 1 could not be delivered: the handle says so, and still tries to answer round 2."""
    options = DeviceOptions(model="stamp", max_batch_size=2, device_blocks=8, max_context_tokens=64)
    specs, handle = build_device(options)
    writer = PlanWriter(specs.groups, device_blocks=8, slots=2)
    delivered: list[Event] = []

    def deliver(payload: bytes) -> None:
        events = decode_events(payload)
        if isinstance(events[0], ExtendResult):
            raise RuntimeError("the mailbox is gone")
        delivered.extend(events)

    handle.start(deliver)
    writer.add(1, PROMPT)
    handle.execute(writer.plan({1: len(PROMPT)}))
    handle.execute(writer.plan(decodes=[1]))
    handle.close()
    assert handle.failure is not None
    assert "the mailbox is gone" in handle.failure
    assert delivered == [ForwardFailed(2, handle.failure)]


def test_closing_answers_what_was_handed_over_and_ends_every_thread() -> None:
    """Twenty rounds are answered when close returns; a second close does nothing; a late plan is refused."""
    before = set(all_threads())
    served = Served()
    served.writer.add(1, PROMPT)
    served.handle.execute(served.writer.plan({1: len(PROMPT)}))
    for _ in range(19):
        served.handle.execute(served.writer.plan(decodes=[1]))
    late = served.writer.plan(decodes=[1])
    served.handle.close()
    served.handle.close()
    assert served.events.qsize() == 20
    assert set(all_threads()) <= before
    with pytest.raises(DeviceFailed, match="round 21 came after the device was closed"):
        served.handle.execute(late)
    with pytest.raises(DeviceFailed, match="build a new one"):
        served.handle.start(lambda payload: None)


def test_a_device_that_was_never_started_can_be_closed_and_refuses_plans() -> None:
    """No answer could be delivered, so nothing is taken."""
    handle: DeviceHandle
    specs, handle = build_device(DeviceOptions(model="stamp", max_batch_size=2, device_blocks=8))
    writer = PlanWriter(specs.groups, device_blocks=8, slots=2)
    writer.add(1, PROMPT)
    with pytest.raises(DeviceFailed, match="round 1 came before the device was started"):
        handle.execute(writer.plan({1: 3}))
    handle.close()
    assert handle.stats().rounds_executed == 0
