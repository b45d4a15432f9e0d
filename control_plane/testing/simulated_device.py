"""A device without memory or model: it answers plans by script, when it is told to."""

from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from control_plane.messages import Event, ExecutionPlan, ExtendResult, ForwardFailed
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

    Rounds in `fail` report a failure instead of a result. With `answers_at_once` it reports from within `execute`.
    """

    def __init__(self, script: Script = count_up, *, fail: Collection[int] = (), answers_at_once: bool = False) -> None:
        self.failure: str | None = None
        self.plans: list[bytes] = []
        self.is_closed = False
        self._script = script
        self._fail = frozenset(fail)
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

    def land(self) -> Event:
        """Report the oldest plan that is out, and return what was reported."""
        plan = self._out.popleft()
        event: Event
        if plan.round in self._fail:
            event = ForwardFailed(plan.round, f"forward {plan.round} was told to fail")
        else:
            event = result_of(plan, self._script)
        if self._deliver is not None:
            self._deliver(encode_events([event]))
        return event

    def close(self) -> None:
        """See `DevicePort.close`."""
        self.is_closed = True
