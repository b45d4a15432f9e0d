"""A device without memory or model: it answers plans by script, when it is told to."""

from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from control_plane.messages import (
    Event,
    ExecutionPlan,
    ExtendResult,
    ForwardFailed,
    LoadBackDone,
    RemotePrefillDone,
    Retract,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import pack, view
from control_plane.messages.wire import decode_plan, encode_events, encode_plan

Script = Callable[[int, int], int]
"""(key, position of the token) -> token"""


def count_up(key: int, position: int) -> int:
    """The default script: tokens that tell whose they are and where they stand."""
    return key * 1000 + position


def result_of(plan: ExecutionPlan, script: Script = count_up) -> ExtendResult:
    """What a forward of this plan reports: one token for every decode and every completing chunk."""
    batch = plan.forward
    assert batch is not None, f"round {plan.round} has no forward to report"
    keys = view(batch.keys)
    ends = view(batch.prefix_lengths) + view(batch.input_lengths)
    counts = np.ones(len(keys), dtype=np.int32)
    counts[: batch.num_extends] = ends[: batch.num_extends] >= view(batch.prefill_lengths)
    sampling = np.flatnonzero(counts)
    tokens = [script(int(keys[row]), int(ends[row])) for row in sampling]
    return ExtendResult(plan.round, batch.keys, pack(counts), pack(tokens))


class SimulatedDevice:
    """Keeps the bytes of every plan; each `land` reports the oldest one that is out.

    Rounds in `fail` report a failure instead of a result; stores and load-backs in `fail_ops` fail; rounds in `lose`
    were withheld, so all their requests retract, and nothing is asked of a peer for them. Of rounds in `silent` a
    load-back never ended: the device gave up and withheld them; their load-backs end by `end_loads`. With
    `answers_at_once` it reports from within `execute`. Stores end when their plan lands, unless the device
    `keeps_stores`: then by `end_store`. So do transfers, whose peer is as quick and as scripted as the model, unless
    it `keeps_transfers`: then by `end_transfer`.
    """

    def __init__(
        self,
        script: Script = count_up,
        *,
        fail: Collection[int] = (),
        lose: Collection[int] = (),
        silent: Collection[int] = (),
        fail_ops: Collection[int] = (),
        keeps_stores: bool = False,
        keeps_transfers: bool = False,
        answers_at_once: bool = False,
    ) -> None:
        self.failure: str | None = None
        self.plans: list[bytes] = []
        self.is_closed = False
        self.stores_out: list[int] = []
        self.loads_out: list[int] = []  # of rounds that were withheld because these never ended
        self.transfers_out: dict[int, Event] = {}  # by key, with what is reported if it succeeds
        self._script = script
        self._fail = frozenset(fail)
        self._lose = frozenset(lose) | frozenset(silent)
        self._silent = frozenset(silent)
        self._fail_ops = frozenset(fail_ops)
        self._keeps_stores = keeps_stores
        self._keeps_transfers = keeps_transfers
        self._answers_at_once = answers_at_once
        self._out: deque[ExecutionPlan] = deque()
        self._deliver: Callable[[bytes], None] | None = None

    @property
    def plans_out(self) -> int:
        """Plans taken and not yet reported."""
        return len(self._out)

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """See `DevicePort.start`."""
        self._deliver = deliver

    def execute(self, plan: ExecutionPlan) -> None:
        """Take a plan by its bytes, as a real device does."""
        payload = encode_plan(plan)
        self.plans.append(payload)
        self._out.append(decode_plan(payload))
        if self._answers_at_once:
            self.land()

    def land(self) -> list[list[Event]]:
        """Report the oldest plan that is out, letter by letter, and return what was reported.

        What makes a later result void is the last event of its letter.
        """
        plan = self._out.popleft()
        letters: list[list[Event]] = []
        if plan.round in self._silent:
            self.loads_out += [load.op for load in plan.load_backs]
        else:
            letters += [[self._loaded(load.op)] for load in plan.load_backs]
        if plan.round in self._lose:
            withheld = [work.keys for work in (plan.forward, plan.remote_prefill) if work is not None]
            letters += [[Retract(key)] for key in view(b"".join(withheld)).tolist()]
        if plan.forward is not None:
            if plan.round in self._fail:
                letters.append([ForwardFailed(plan.round, f"forward {plan.round} was told to fail")])
            else:
                letters.append([result_of(plan, self._script)])
        self.stores_out += [store.op for store in plan.stores]
        if not self._keeps_stores:
            letters += [[self._ended(op)] for op in self.stores_out]
            self.stores_out.clear()
        self._begin_transfers(plan)
        if not self._keeps_transfers:
            letters += [[event] for event in self.transfers_out.values()]
            self.transfers_out.clear()
        for letter in letters:
            self._report(letter)
        return letters

    def end_store(self, op: int) -> Event:
        """Report that a store is over, and return what was reported."""
        self.stores_out.remove(op)
        event = self._ended(op)
        self._report([event])
        return event

    def end_loads(self) -> list[Event]:
        """The load-backs of withheld rounds end after all; returns what was reported."""
        events: list[Event] = [self._loaded(op) for op in self.loads_out]
        self.loads_out.clear()
        self._report(events)
        return events

    def end_transfer(self, key: int, *, failure: str = "") -> Event:
        """Report that the peer is done with a request's pages, and return what was reported."""
        event = self.transfers_out.pop(key)
        if failure:
            assert isinstance(event, RemotePrefillDone | TransferSucceeded), f"{event} is no success"
            event = TransferFailed(key, event.attempt, failure)
        self._report([event])
        return event

    def close(self) -> None:
        """See `DevicePort.close`."""
        self.is_closed = True

    def _begin_transfers(self, plan: ExecutionPlan) -> None:
        if (work := plan.remote_prefill) is not None and plan.round not in self._lose:
            columns = (view(column).tolist() for column in (work.keys, work.attempts, work.ends))
            for key, attempt, end in zip(*columns, strict=True):
                self.transfers_out[key] = RemotePrefillDone(key, attempt, pack([self._script(key, end)]))
        if (work := plan.remote_decode) is not None:
            for key, attempt in zip(view(work.keys).tolist(), view(work.attempts).tolist(), strict=True):
                self.transfers_out[key] = TransferSucceeded(key, attempt)

    def _loaded(self, op: int) -> LoadBackDone:
        return LoadBackDone(op, success=op not in self._fail_ops)

    def _ended(self, op: int) -> WriteBackDone:
        return WriteBackDone(op, success=op not in self._fail_ops)

    def _report(self, letter: list[Event]) -> None:
        if self._deliver is not None:
            self._deliver(encode_events(letter))
