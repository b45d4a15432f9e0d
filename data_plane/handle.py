"""Everything the loop may ask of the device, by name."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from control_plane.errors import DeviceFailed
from control_plane.messages import ExecutionPlan
from control_plane.messages.wire import encode_plan
from data_plane.executor import Executor
from data_plane.forward_thread import Deliver, Forward, ForwardThread
from data_plane.ordering import Violation
from data_plane.rounds import Rounds
from data_plane.streams.base import Streams

MakeForward = Callable[[Rounds, Deliver], Forward]


class DeviceStats(Struct, frozen=True):
    """What the device did so far. A round is in flight from `execute` until it is answered."""

    rounds_executed: int
    rounds_in_flight: int
    rounds_failed: int
    arena_bytes: int


class DeviceHandle:
    """The device side of one engine. Called from one thread, the loop's."""

    def __init__(
        self,
        executor: Executor,
        streams: Streams,
        *,
        arena_bytes: int,
        forward: MakeForward = ForwardThread,
        violations: Sequence[Violation] = (),
    ) -> None:
        """`violations` is what an order checker finds, if there is one: it may grow."""
        self.violations = violations
        self._rounds = Rounds(executor)
        self._streams = streams
        self._arena_bytes = arena_bytes
        self._make_forward = forward
        self._forward: Forward | None = None
        self._closed = False
        self._submitted_count = 0

    @property
    def failure(self) -> str | None:
        """Why the device stopped, or None while it works. A stopped device answers every batch with ForwardFailed."""
        return self._rounds.failure

    def start(self, deliver: Deliver) -> None:
        """Begin. `deliver` gets letters of encoded events (`wire.decode_events`) on threads of the device.

        Answers come in round order, on one thread; acknowledged stores at any time between them, on another.
        """
        if self._closed:
            raise DeviceFailed("the device was closed; build a new one")
        assert self._forward is None, "the device was started twice"
        self._forward = self._make_forward(self._rounds, deliver)

    def execute(self, plan: ExecutionPlan) -> None:
        """Hand over a plan. What is carried out is its encoded form, so later changes could not reach it.

        Never waits. Every plan with a batch is answered with ExtendResult or ForwardFailed, after a LoadBackDone for
        each of its load-backs; every store with a WriteBackDone. Unless the plan was refused here: raises DeviceFailed
        before `start` and after `close`.
        """
        if self._forward is None:
            raise DeviceFailed(f"round {plan.round} came before the device was started")
        self._forward.submit(plan.round, encode_plan(plan))
        self._submitted_count += 1

    def close(self) -> None:
        """Carry out and answer what was handed over, then end the threads. A second call does nothing.

        Not to be called from `deliver`, which runs on a thread that this waits for.
        """
        self._closed = True
        if self._forward is not None:
            self._forward.close()
        self._streams.close()

    def stats(self) -> DeviceStats:
        """The figures of this moment."""
        answered = 0 if self._forward is None else self._forward.answered_count
        # An inline device answers within `execute`, before that was counted.
        in_flight = max(0, self._submitted_count - answered)
        return DeviceStats(answered, in_flight, self._rounds.failed_count, self._arena_bytes)
