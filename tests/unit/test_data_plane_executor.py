"""A plan's fields are carried out in their order, and a failing step leaves the tables right."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from control_plane.messages import (
    BlockList,
    ExecutionPlan,
    ForwardBatch,
    LoadBack,
    RemoteWork,
    Sampling,
    SlotBinding,
    Store,
    StoreSourceGuard,
    TableEdit,
)
from control_plane.messages.columns import Int32s, pack, view
from data_plane.accesses import PlanAccesses
from data_plane.batch.rows import Rows
from data_plane.executor import Executor
from data_plane.faults import ModelFailed, PlanFault
from data_plane.model.base import DeviceMemory, GroupLayout, ModelFacts
from data_plane.ops.host_tier import CopyInFlight
from data_plane.streams.base import NO_BLOCKS, Access, FirstError, StreamEvent, Tier, Work
from data_plane.streams.inline_streams import InlineEvent, InlineStreams

FACTS = ModelFacts("fake", 10, 100, (), (), "none", 0)


class Fake:
    """Every part that a plan can ask for, writing down what it was asked; `broken` steps raise."""

    def __init__(self, *broken: str) -> None:
        self.calls: list[str] = []
        self.lost: list[list[bool]] = []
        self.broken = set(broken)
        self.facts = FACTS

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise ValueError(f"{name} is broken")

    def store(self, round: int, stores: Sequence[Store]) -> list[CopyInFlight]:
        self._call("stores")
        return []

    def zero(self, lists: Sequence[BlockList]) -> None:
        self._call("zero")

    def load_back(self, round: int, load_backs: Sequence[LoadBack]) -> list[CopyInFlight]:
        self._call("load_backs")
        return []

    def apply(self, edits: Sequence[TableEdit]) -> None:
        self._call("tables")

    def prefill(self, work: RemoteWork) -> None:
        self._call("remote_prefill")

    def decode(self, work: RemoteWork) -> None:
        self._call("remote_decode")

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        self._call("attach")

    def bind(self, binding: SlotBinding) -> None:
        self._call(f"bind {binding.slot}")

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        self.lost.append(rows.lost.tolist())
        self._call("forward")
        return lambda: np.arange(int(rows.samples.sum()), dtype=np.int32)


class DeferredStream:
    """Runs nothing until its mark is waited for, and remembers the labels."""

    name = "forward"

    def __init__(self) -> None:
        self.queue: list[tuple[Work, str]] = []
        self.labels: list[str] = []
        self.accesses: dict[str, Access] = {}
        self._errors = FirstError()

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        self.queue.append((work, label))
        self.labels.append(label)
        self.accesses[label] = access

    def record(self) -> StreamEvent:
        return self

    def wait(self, event: StreamEvent) -> None:
        raise AssertionError("nothing waits here")

    def query(self) -> bool:
        return not self.queue

    def wait_host(self) -> None:
        while self.queue:
            work, label = self.queue.pop(0)
            self._errors.perform(work, label=label, stream=self.name)
        InlineEvent(self._errors.take()).wait_host()


class DeferredStreams(InlineStreams):
    """The forward stream is deferred."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = DeferredStream()  # type: ignore[assignment]


def executor(fake: Fake, streams: InlineStreams | None = None) -> Executor:
    return Executor(
        streams=streams or InlineStreams(), zeroing=fake, tables=fake, runner=fake, host_tier=fake, remote=fake
    )


def batch(*keys: int, slots: Sequence[int] = ()) -> ForwardBatch:
    ones = pack([1] * len(keys))
    return ForwardBatch(
        pack(keys), pack(slots or range(len(keys))), 0, ones, pack([5] * len(keys)), b"", b"", b"", b"", 1
    )


def binding(slot: int, key: int) -> SlotBinding:
    return SlotBinding(slot, key, 4, b"", Sampling())


def full_plan(round: int = 1, *keys: int) -> ExecutionPlan:
    """A plan with something in every field."""
    work = RemoteWork(b"", b"", b"", b"", b"")
    return ExecutionPlan(
        round=round,
        stores=(Store(1, StoreSourceGuard.STREAM_ORDERED, 0, pack([1]), pack([2])),),
        zero=(BlockList(0, pack([3])),),
        load_backs=(LoadBack(2, 0, pack([1]), pack([3])),),
        tables=(TableEdit(0, 0, 0, pack([3])),),
        bindings=(binding(0, 1), binding(1, 2)),
        remote_prefill=work,
        remote_decode=work,
        forward=batch(*(keys or (1, 2))),
        notes=(),
    )


def small_plan(round: int, forward: ForwardBatch, *bindings: SlotBinding) -> ExecutionPlan:
    return ExecutionPlan(round, (), (), (), (), bindings, None, None, forward, ())


IN_ORDER = [
    "stores",
    "zero",
    "load_backs",
    "tables",
    "bind 0",
    "bind 1",
    "remote_prefill",
    "remote_decode",
    "forward",
]


def test_the_fields_are_carried_out_in_the_order_in_which_they_stand() -> None:
    """Stores read before zeroing clears, tables point at clean blocks only, the model is last."""
    fake = Fake()
    flight = executor(fake).execute(full_plan())
    assert fake.calls == IN_ORDER
    assert flight.tokens().tolist() == [0, 1]
    assert (flight.round, view(flight.keys).tolist(), flight.counts.tolist()) == (1, [1, 2], [1, 1])
    fields = [field for field in ExecutionPlan.__struct_fields__ if field not in ("round", "notes")]
    assert fields == [
        "stores", "zero", "load_backs", "tables", "bindings", "remote_prefill", "remote_decode", "forward"
    ]  # fmt: skip


def test_what_touches_the_models_memory_is_enqueued_and_not_done_at_once() -> None:
    """On a deferred stream nothing of it happened when `execute` returns; where asked for, accesses are declared."""
    fake, streams = Fake(), DeferredStreams()
    accesses = PlanAccesses([GroupLayout("full", "full", 4, 64)], slots=2, widths=[4], block_counts=[9])
    device = Executor(
        streams=streams, zeroing=fake, tables=fake, runner=fake, host_tier=fake, remote=fake, accesses=accesses
    )
    flight = device.execute(full_plan())
    assert fake.calls == ["stores", "load_backs", "remote_prefill", "remote_decode"]
    forward = streams.forward
    assert isinstance(forward, DeferredStream)
    assert forward.labels == [f"{step} of round 1" for step in ("zero", "tables", "bindings", "forward")]
    (span,) = forward.accesses["zero of round 1"].writes
    assert (span.tier, span.group, span.blocks.tolist()) == (Tier.DEVICE, 0, [3])
    flight.tokens()
    assert fake.calls[4:] == ["zero", "tables", "bind 0", "bind 1", "forward"]


@pytest.mark.parametrize("broken", ["stores", "zero", "load_backs", "remote_prefill"])
def test_a_failing_step_keeps_the_model_from_running_and_never_the_tables(broken: str) -> None:
    """The round fails with that step's error; tables and bindings are as the planner believes."""
    fake = Fake(broken)
    flight = executor(fake).execute(full_plan())
    assert "forward" not in fake.calls
    assert [call for call in fake.calls if call in ("tables", "bind 0", "bind 1")] == ["tables", "bind 0", "bind 1"]
    with pytest.raises(ValueError, match=f"{broken} is broken"):
        flight.tokens()


def test_failing_tables_keep_the_model_from_running_and_never_the_bindings() -> None:
    """Through wrong tables the model would write into someone else's blocks."""
    fake = Fake("tables")
    flight = executor(fake).execute(full_plan())
    assert fake.calls[-4:] == ["bind 0", "bind 1", "remote_prefill", "remote_decode"]
    with pytest.raises(ValueError, match="tables is broken"):
        flight.tokens()


def test_a_binding_that_the_model_refuses_fails_the_round_after_all_were_told() -> None:
    """A client's sampling can be at fault: the model's failure, not the planner's."""
    fake = Fake("bind 0")
    flight = executor(fake).execute(full_plan())
    assert "bind 1" in fake.calls
    assert "forward" not in fake.calls
    with pytest.raises(ModelFailed, match="ValueError: bind 0 is broken"):
        flight.tokens()


def test_a_model_that_raises_fails_its_round_with_its_own_words() -> None:
    """The cause is chained; the next round runs."""
    fake = Fake("forward")
    device = executor(fake)
    with pytest.raises(ModelFailed, match="ValueError: forward is broken") as raised:
        device.execute(full_plan()).tokens()
    assert isinstance(raised.value.__cause__, ValueError)
    fake.broken.clear()
    assert device.execute(full_plan(2)).tokens().tolist() == [0, 1]


@pytest.mark.parametrize("broken", ["forward", "zero"])
def test_rows_of_a_failed_round_are_marked_lost_in_rounds_already_planned(broken: str) -> None:
    """Round 1 of requests 1 and 2 fails while round 2 holds 2 and 3: the model is told that 2 lacks its rows.

    Slot 1 is then given to request 9, and nothing of that is left.
    """
    fake = Fake(broken)
    device = executor(fake)
    with pytest.raises((ModelFailed, ValueError)):
        device.execute(full_plan(1, 1, 2)).tokens()
    fake.broken.clear()
    fake.lost.clear()
    device.execute(small_plan(2, batch(2, 3, slots=[1, 2]))).tokens()
    device.execute(small_plan(3, batch(3, 9, slots=[2, 1]), binding(1, 9))).tokens()
    device.execute(small_plan(4, batch(9, slots=[1]))).tokens()
    assert fake.lost == [[True, False], [False, False], [False]]


def test_without_a_host_tier_or_a_peer_their_work_is_refused_and_the_tables_still_follow() -> None:
    """A plan for another kind of device: the first refusal is the round's error."""
    fake = Fake()
    device = Executor(streams=InlineStreams(), zeroing=fake, tables=fake, runner=fake)
    with pytest.raises(PlanFault, match="stores 1 times, but this device has no host tier"):
        device.execute(full_plan()).tokens()
    assert fake.calls == ["tables", "bind 0", "bind 1"]
    plan = full_plan(2)
    only_remote = ExecutionPlan(2, (), (), (), (), (), plan.remote_prefill, plan.remote_decode, None, ())
    with pytest.raises(PlanFault, match="remote prefills, but this device has no peer"):
        device.execute(only_remote).tokens()
    only_loads = ExecutionPlan(3, (), (), plan.load_backs, (), (), None, plan.remote_decode, None, ())
    with pytest.raises(PlanFault, match="loads back 1 times"):
        device.execute(only_loads).tokens()


def test_a_request_that_comes_back_in_another_slot_is_not_lost() -> None:
    """Round 1 of request 2, in slot 1, fails; it is served again from slot 3, while slot 1 has no new owner yet."""
    fake = Fake("forward")
    device = executor(fake)
    with pytest.raises(ModelFailed):
        device.execute(small_plan(1, batch(2, slots=[1]))).tokens()
    fake.broken.clear()
    fake.lost.clear()
    device.execute(small_plan(2, batch(2, slots=[3]), binding(3, 2))).tokens()
    assert fake.lost == [[False]]


def test_a_plan_that_only_releases_has_no_results() -> None:
    """Edits alone: nothing is sampled, nothing raised."""
    fake = Fake()
    plan = ExecutionPlan(7, (), (), (), (TableEdit(0, 0, 0, b""),), (), None, None, None, ())
    flight = executor(fake).execute(plan)
    assert (flight.keys, flight.tokens().tolist(), fake.calls) == (b"", [], ["tables"])


def test_a_model_that_gives_too_few_tokens_is_caught() -> None:
    """Tokens must not be attributed to the wrong rows."""

    class Short(Fake):
        def run(self, rows: Rows) -> Callable[[], Int32s]:
            return lambda: np.zeros(1, dtype=np.int32)

    with pytest.raises(ModelFailed, match="1 tokens for 2 sampling rows"):
        executor(Short()).execute(full_plan()).tokens()
