"""Carries out a decoded plan, field by field."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

import numpy as np

from control_plane.errors import DeviceFailed
from control_plane.messages import BlockList, ExecutionPlan, LoadBack, SlotBinding, Store, TableEdit
from control_plane.messages.columns import Int32s, view
from data_plane.accesses import Accesses, NoAccesses
from data_plane.batch.rows import Rows
from data_plane.faults import ModelFailed
from data_plane.lost import Lost
from data_plane.model.base import ModelRunner
from data_plane.ops.host_tier import CopyInFlight, HostTier, NoHostTier
from data_plane.ops.remote import NoRemote, Remote
from data_plane.ops.table_edits import TableEdits
from data_plane.ops.zeroing import Zeroing
from data_plane.streams.base import NO_BLOCKS, Access, Stream, StreamEvent, Streams, Work

Done = TypeVar("Done")


class RoundInFlight:
    """A round that was handed to the streams, or refused.

    `keys` (an int32 column) and `counts` (the tokens that each row samples) are empty without a batch. `stores` are
    over when they say so, `loads` with the round. `failure` is what the first failing step raised. `rows` may have
    more to tell when the round is done.
    """

    def __init__(self, round: int, rows: Rows | None, keys: bytes) -> None:
        self.round = round
        self.rows = rows
        self.keys = keys
        self.counts: Int32s = np.zeros(0, dtype=np.int32) if rows is None else rows.samples.astype(np.int32)
        self.stores: Sequence[CopyInFlight] = ()
        self.loads: Sequence[CopyInFlight] = ()
        self.completion: StreamEvent | None = None
        self.failure: BaseException | None = None
        self._read_tokens: Callable[[], Int32s] | None = None

    @classmethod
    def refused(cls, plan: ExecutionPlan) -> Self:
        """A round of which nothing is carried out: its stores and load-backs are over, without success."""
        flight = cls(plan.round, None, b"")
        flight.stores, flight.loads = _refused(plan.stores), _refused(plan.load_backs)
        return flight

    def computes(self, read_tokens: Callable[[], Int32s]) -> None:
        """The model enqueued its work; `read_tokens` gives the samples once it is done."""
        self._read_tokens = read_tokens

    def tokens(self) -> Int32s:
        """Wait until the round is done; the sampled tokens, in row order.

        Raises ModelFailed when the model failed this round, and any other error when a step beside it did.
        """
        assert self.completion is not None, f"round {self.round} was not enqueued to its end"
        self.completion.wait_host()
        # Marks inside the round may have taken the stream's error before its last mark could.
        if self.failure is not None:
            raise self.failure
        if self._read_tokens is None:
            return np.zeros(0, dtype=np.int32)
        try:
            tokens = self._read_tokens()
        except Exception as error:
            raise _model_failed(error) from error
        expected = int(self.counts.sum())
        if len(tokens) != expected:
            raise ModelFailed(f"the model gave {len(tokens)} tokens for {expected} sampling rows")
        return tokens


class _Steps:
    """One round's steps on a stream. After one raised, only those that must happen regardless still do."""

    def __init__(self, stream: Stream, flight: RoundInFlight) -> None:
        self._stream = stream
        self._flight = flight

    def then(self, label: str, work: Work, access: Access = NO_BLOCKS, otherwise: Work = lambda: None) -> None:
        """Enqueue `work`; if a step before it raised, `otherwise` is done instead."""
        self._enqueue(label, lambda: otherwise() if self._flight.failure is not None else self._attempt(work), access)

    def always(self, label: str, work: Work, access: Access = NO_BLOCKS) -> None:
        """Enqueue `work`, whatever happened before."""
        self._enqueue(label, partial(self._attempt, work), access)

    def directly(self, label: str, work: Callable[[], Done]) -> Done | None:
        """Do `work`, which enqueues by itself, on this thread; what it raises fails the round, and None is returned."""
        try:
            return work()
        except Exception as error:
            self._enqueue(label, partial(self._attempt, partial(_raise, error)), NO_BLOCKS)
            return None

    def _enqueue(self, label: str, work: Work, access: Access) -> None:
        self._stream.enqueue(work, f"{label} of round {self._flight.round}", access)

    def _attempt(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:
            if self._flight.failure is None:
                self._flight.failure = error
            raise


class Executor:
    """Enqueues plans on streams, on one thread, and never waits for them."""

    def __init__(
        self,
        *,
        streams: Streams,
        zeroing: Zeroing,
        tables: TableEdits,
        runner: ModelRunner,
        host_tier: HostTier | None = None,
        remote: Remote | None = None,
        accesses: Accesses | None = None,
        lost: Lost | None = None,
    ) -> None:
        """`accesses` says what each step touches, for streams that are observed; without it nothing is declared.

        `lost` is shared with the host tier; without it only slots are known to be lost, and no blocks.
        """
        self._streams = streams
        self._zeroing = zeroing
        self._tables = tables
        self._runner = runner
        self._host_tier = host_tier or NoHostTier()
        self._remote = remote or NoRemote()
        self._accesses = accesses or NoAccesses()
        self._lost = lost or Lost()

    def execute(self, plan: ExecutionPlan) -> RoundInFlight:
        """Enqueue all the work of a plan.

        The fields are handled in the order in which they stand in the plan. That order is why a block may be reused
        in the round that freed it: a store reads the old bytes before zeroing clears them; a load-back fills blocks
        that are clean; no table points at a block before it is ready for its new owner; the model comes last.

        Tables and bindings follow the plan even when an earlier step raised: the planner goes on from the state that
        it planned, and a slot that kept its old table would write into blocks that belong to someone else.
        """
        rows = None if plan.forward is None else Rows(plan.forward)
        flight = RoundInFlight(plan.round, rows, b"" if plan.forward is None else plan.forward.keys)
        steps = _Steps(self._streams.forward, flight)
        if plan.stores:
            begun = steps.directly("stores", partial(self._host_tier.store, plan.round, plan.stores))
            flight.stores = _refused(plan.stores) if begun is None else begun
        if plan.zero:
            steps.then("zero", partial(self._zero, plan.zero), self._accesses.zero(plan.zero))
        if plan.load_backs:
            begun = steps.directly("load-backs", partial(self._host_tier.load_back, plan.round, plan.load_backs))
            flight.loads = _refused(plan.load_backs) if begun is None else begun
        if plan.tables:
            steps.always("tables", partial(self._edit, plan.tables), self._accesses.tables(plan.tables))
        if plan.bindings:
            steps.always("bindings", partial(self._bind, plan.bindings), self._accesses.bindings(plan.bindings))
        if plan.remote_prefill:
            steps.directly("remote prefill", partial(self._remote.prefill, plan.remote_prefill))
        if plan.remote_decode:
            steps.directly("remote decode", partial(self._remote.decode, plan.remote_decode))
        if rows is not None:
            access = self._accesses.forward(rows)
            steps.then("forward", partial(self._run, rows, flight), access, otherwise=partial(self._lost.miss, rows))
        flight.completion = self._streams.forward.record()
        return flight

    def _zero(self, lists: Sequence[BlockList]) -> None:
        self._zeroing.zero(lists)
        for each in lists:
            self._lost.renewed(each.group, view(each.blocks))

    def _edit(self, edits: Sequence[TableEdit]) -> None:
        self._tables.apply(edits)
        self._lost.edited(edits)

    def _run(self, rows: Rows, flight: RoundInFlight) -> None:
        self._lost.mark(rows)
        try:
            flight.computes(self._runner.run(rows))
        except Exception as error:
            self._lost.miss(rows)
            raise _model_failed(error) from error

    def _bind(self, bindings: Sequence[SlotBinding]) -> None:
        """Tell the model of every new owner, then raise the first error there was."""
        failure: Exception | None = None
        for binding in bindings:
            self._lost.bound(binding.slot)
            try:
                self._runner.bind(binding)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise _model_failed(failure) from failure


def _model_failed(error: Exception) -> ModelFailed:
    return ModelFailed(f"{type(error).__name__}: {error}")


def _raise(error: Exception) -> None:
    raise error


def _refused(operations: Sequence[Store | LoadBack]) -> list[CopyInFlight]:
    """Copies that are over because they never began."""
    copies = []
    for operation in operations:
        copy = CopyInFlight(operation.op, f"operation {operation.op}")
        copy.error = DeviceFailed(f"operation {operation.op} was not begun")
        copies.append(copy)
    return copies
