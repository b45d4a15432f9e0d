"""Recording: an observer that wraps the scheduler's three calls. The loop does not know it is there."""

from collections.abc import Callable, Sequence

from control_plane.fsm.states import resources_of
from control_plane.messages import Event, ExecutionPlan, RequestSpec
from control_plane.messages.wire import encode_events, encode_plan, encode_specs
from control_plane.rounds.frames import NO_TIME, FrameKind
from control_plane.rounds.redact import Redactor
from control_plane.rounds.trace import LiveRequest
from control_plane.rounds.wrapped import WrappedScheduler
from control_plane.rounds.writer import TraceWriter
from control_plane.scheduler.feedback import Ended
from control_plane.scheduler.scheduler import Scheduler


class RecordingScheduler(WrappedScheduler):
    """A scheduler that leaves a record of every submission, event and plan. Costs an encoding and a buffered write.

    `clock_us`, if given, is read once for every frame; the core itself is told no time. A `redactor` takes out what the
    clients wrote before it reaches the writer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        writer: TraceWriter,
        *,
        clock_us: Callable[[], int] | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        super().__init__(scheduler)
        self._requests = scheduler.requests
        self._writer = writer
        self._clock_us = clock_us
        self._redactor = redactor
        self._round = 0
        self._next_key = 1

    def submit(self, specs: Sequence[RequestSpec]) -> list[int]:
        """Record what is submitted, then submit it. What is refused leaves no record."""
        keys = self._scheduler.submit(specs)
        if specs:
            self._next_key = keys[-1] + 1
            if self._redactor is not None:
                specs = [self._redactor.spec(spec) for spec in specs]
            self._write(FrameKind.SUBMISSIONS, encode_specs(specs))
        return keys

    def advance(self, events: Sequence[Event]) -> list[Ended]:
        """Record what happened, then apply it: a fault in applying it can then be replayed."""
        if events:
            said = events if self._redactor is None else [self._redactor.event(event) for event in events]
            self._write(FrameKind.EVENTS, encode_events(said))
        return self._scheduler.advance(events)

    def next_plan(self) -> ExecutionPlan:
        """Plan, then record the plan. An empty one too: asking for it may have changed what is remembered."""
        plan = self._scheduler.next_plan()
        if plan.has_work:
            self._round = plan.round
        said = plan if self._redactor is None else self._redactor.plan(plan)
        self._write(FrameKind.PLAN, encode_plan(said))
        if not plan.has_work:
            self._writer.flush()
        if self._writer.is_full:
            self._writer.next_part(self._live(), first_key=self._next_key, round_number=self._round)
        return plan

    def _write(self, kind: FrameKind, payload: bytes) -> None:
        time_us = NO_TIME if self._clock_us is None else self._clock_us()
        self._writer.write(kind, payload, round_number=self._round, time_us=time_us)

    def _live(self) -> list[LiveRequest]:
        """Who is there now, as a part of the recording introduces them."""
        return [
            LiveRequest(
                key=key,
                id=request.spec.id if self._redactor is None else self._redactor.name(request.spec.id),
                prompt_tokens=request.prompt_tokens,
                max_new_tokens=request.spec.max_new_tokens,
                waits=resources_of(request.state) is None,
            )
            for key, request in self._requests.items()
        ]
