"""What every observer of a scheduler shares: the calls that it hands on unchanged."""

from collections.abc import Sequence

from control_plane.messages import Event, ExecutionPlan, RequestSpec
from control_plane.scheduler.feedback import Ended
from control_plane.scheduler.scheduler import Scheduler
from control_plane.scheduler.stats import SchedulerStats


class WrappedScheduler:
    """A scheduler behind another one's calls. What an observer wants to see, it overrides."""

    def __init__(self, scheduler: "Scheduler | WrappedScheduler") -> None:
        self._scheduler = scheduler

    def submit(self, specs: Sequence[RequestSpec]) -> list[int]:
        """See `Scheduler.submit`."""
        return self._scheduler.submit(specs)

    def advance(self, events: Sequence[Event]) -> list[Ended]:
        """See `Scheduler.advance`."""
        return self._scheduler.advance(events)

    def next_plan(self) -> ExecutionPlan:
        """See `Scheduler.next_plan`."""
        return self._scheduler.next_plan()

    @property
    def has_room(self) -> bool:
        """See `Scheduler.has_room`."""
        return self._scheduler.has_room

    @property
    def max_single_request_tokens(self) -> int:
        """See `Scheduler.max_single_request_tokens`."""
        return self._scheduler.max_single_request_tokens

    def check(self, spec: RequestSpec) -> None:
        """See `Scheduler.check`."""
        self._scheduler.check(spec)

    def max_new_tokens(self, spec: RequestSpec) -> int:
        """See `Scheduler.max_new_tokens`."""
        return self._scheduler.max_new_tokens(spec)

    def void_keys(self, round_number: int) -> frozenset[int]:
        """See `Scheduler.void_keys`."""
        return self._scheduler.void_keys(round_number)

    def awaits_round(self, round_number: int) -> bool:
        """See `Scheduler.awaits_round`."""
        return self._scheduler.awaits_round(round_number)

    def awaits_peer(self, key: int, attempt: int) -> bool:
        """See `Scheduler.awaits_peer`."""
        return self._scheduler.awaits_peer(key, attempt)

    def take_stall_report(self) -> str | None:
        """See `Scheduler.take_stall_report`."""
        return self._scheduler.take_stall_report()

    def explain(self, request_id: str) -> str:
        """See `Scheduler.explain`."""
        return self._scheduler.explain(request_id)

    def stats(self) -> SchedulerStats:
        """See `Scheduler.stats`."""
        return self._scheduler.stats()

    def audit(self) -> list[str]:
        """See `Scheduler.audit`."""
        return self._scheduler.audit()
