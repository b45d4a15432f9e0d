"""Carries out a decoded plan, field by field."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from control_plane.messages import ExecutionPlan, ForwardBatch, SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.accesses import Accesses, NoAccesses
from data_plane.batch.rows import Rows
from data_plane.faults import ModelFailed
from data_plane.model.base import ModelRunner
from data_plane.ops.host_tier import HostTier, NoHostTier
from data_plane.ops.remote import NoRemote, Remote
from data_plane.ops.table_edits import TableEdits
from data_plane.ops.zeroing import Zeroing
from data_plane.streams.base import NO_BLOCKS, Access, Stream, StreamEvent, Streams, Work


class RoundInFlight:
    """A round that was handed to the streams.

    `keys` (an int32 column) and `counts` (the tokens that each row samples) are empty without a batch.
    """

    def __init__(self, round: int, rows: Rows | None, keys: bytes) -> None:
        self.round = round
        self.keys = keys
        self.counts: Int32s = np.zeros(0, dtype=np.int32) if rows is None else rows.samples.astype(np.int32)
        self.completion: StreamEvent | None = None
        self._read_tokens: Callable[[], Int32s] | None = None

    def computes(self, read_tokens: Callable[[], Int32s]) -> None:
        """The model enqueued its work; `read_tokens` gives the samples once it is done."""
        self._read_tokens = read_tokens

    def tokens(self) -> Int32s:
        """Wait until the round is done; the sampled tokens, in row order.

        Raises ModelFailed when the model failed this round, and any other error when a step beside it did.
        """
        assert self.completion is not None, f"round {self.round} was not enqueued to its end"
        self.completion.wait_host()
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

    def __init__(self, stream: Stream, round: int) -> None:
        self._stream = stream
        self._round = round
        self._failed = False

    def then(self, label: str, work: Work, access: Access = NO_BLOCKS, otherwise: Work = lambda: None) -> None:
        """Enqueue `work`; if a step before it raised, `otherwise` is done instead."""
        self._enqueue(label, lambda: otherwise() if self._failed else self._attempt(work), access)

    def always(self, label: str, work: Work, access: Access = NO_BLOCKS) -> None:
        """Enqueue `work`, whatever happened before."""
        self._enqueue(label, partial(self._attempt, work), access)

    def directly(self, label: str, work: Work) -> None:
        """Do `work`, which enqueues on streams of its own, on this thread; what it raises fails the round."""
        try:
            work()
        except Exception as error:
            self._enqueue(label, partial(self._attempt, partial(_raise, error)), NO_BLOCKS)

    def _enqueue(self, label: str, work: Work, access: Access) -> None:
        self._stream.enqueue(work, f"{label} of round {self._round}", access)

    def _attempt(self, work: Work) -> None:
        try:
            work()
        except BaseException:
            self._failed = True
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
    ) -> None:
        """`accesses` says what each step touches, for streams that are observed; without it nothing is declared."""
        self._streams = streams
        self._zeroing = zeroing
        self._tables = tables
        self._runner = runner
        self._host_tier = host_tier or NoHostTier()
        self._remote = remote or NoRemote()
        self._accesses = accesses or NoAccesses()
        # Requests whose round failed, by slot, until the slot has a new owner. Used on the forward stream alone.
        self._lost: dict[int, int] = {}

    def execute(self, plan: ExecutionPlan) -> RoundInFlight:
        """Enqueue all the work of a plan.

        The fields are handled in the order in which they stand in the plan. That order is why a block may be reused
        in the round that freed it: a store reads the old bytes before zeroing clears them; a load-back fills blocks
        that are clean; no table points at a block before it is ready for its new owner; the model comes last.

        Tables and bindings follow the plan even when an earlier step raised: the planner goes on from the state that
        it planned, and a slot that kept its old table would write into blocks that belong to someone else.
        """
        steps = _Steps(self._streams.forward, plan.round)
        if plan.stores:
            steps.directly("stores", partial(self._host_tier.store, plan.stores))
        if plan.zero:
            steps.then("zero", partial(self._zeroing.zero, plan.zero), self._accesses.zero(plan.zero))
        if plan.load_backs:
            steps.directly("load-backs", partial(self._host_tier.load_back, plan.load_backs))
        if plan.tables:
            steps.always("tables", partial(self._tables.apply, plan.tables), self._accesses.tables(plan.tables))
        if plan.bindings:
            steps.always("bindings", partial(self._bind, plan.bindings), self._accesses.bindings(plan.bindings))
        if plan.remote_prefill:
            steps.directly("remote prefill", partial(self._remote.prefill, plan.remote_prefill))
        if plan.remote_decode:
            steps.directly("remote decode", partial(self._remote.decode, plan.remote_decode))
        flight = self._forward(steps, plan.round, plan.forward)
        flight.completion = self._streams.forward.record()
        return flight

    def _forward(self, steps: _Steps, round: int, batch: ForwardBatch | None) -> RoundInFlight:
        if batch is None:
            return RoundInFlight(round, None, b"")
        rows = Rows(batch)
        flight = RoundInFlight(round, rows, batch.keys)
        access = self._accesses.forward(rows)
        steps.then("forward", partial(self._run, rows, flight), access, otherwise=partial(self._lose, rows))
        return flight

    def _run(self, rows: Rows, flight: RoundInFlight) -> None:
        if self._lost:
            rows.lost |= np.isin(rows.keys, list(self._lost.values()))
        try:
            flight.computes(self._runner.run(rows))
        except Exception as error:
            self._lose(rows)
            raise _model_failed(error) from error

    def _lose(self, rows: Rows) -> None:
        self._lost.update(zip(rows.slots.tolist(), rows.keys.tolist(), strict=True))

    def _bind(self, bindings: Sequence[SlotBinding]) -> None:
        """Tell the model of every new owner, then raise the first error there was."""
        failure: Exception | None = None
        for binding in bindings:
            self._lost.pop(binding.slot, None)
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
