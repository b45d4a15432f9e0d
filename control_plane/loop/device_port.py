"""Everything the loop may ask of the data plane, by name, and of the scheduler."""

from collections.abc import Callable, Sequence
from typing import Protocol

from control_plane.messages import Event, ExecutionPlan, RequestSpec
from control_plane.scheduler.feedback import Ended
from control_plane.scheduler.stats import SchedulerStats


class DevicePort(Protocol):
    """A device that executes plans in order and reports each forward exactly once."""

    @property
    def failure(self) -> str | None:
        """Why the device cannot go on; None while it can."""
        ...

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """From now on call `deliver` with encoded events, from any thread.

        An event that makes later results void (a failed forward or load-back, a retraction) is the last of its letter.
        """
        ...

    def execute(self, plan: ExecutionPlan) -> None:
        """Take a plan. Never waits: the outcome is an event."""
        ...

    def close(self) -> None:
        """Finish what was taken and let go of threads and memory. Once is enough, more is allowed."""
        ...


class SchedulerPort(Protocol):
    """The scheduler as the loop uses it, recorded or not. See `control_plane.scheduler.scheduler.Scheduler`."""

    @property
    def has_room(self) -> bool: ...

    @property
    def max_single_request_tokens(self) -> int: ...

    def check(self, spec: RequestSpec) -> None: ...

    def max_new_tokens(self, spec: RequestSpec) -> int: ...

    def submit(self, specs: Sequence[RequestSpec]) -> list[int]: ...

    def advance(self, events: Sequence[Event]) -> list[Ended]: ...

    def next_plan(self) -> ExecutionPlan: ...

    def void_keys(self, round_number: int) -> frozenset[int]: ...

    def awaits_round(self, round_number: int) -> bool: ...

    def awaits_peer(self, key: int, attempt: int) -> bool: ...

    def take_stall_report(self) -> str | None: ...

    def explain(self, request_id: str) -> str: ...

    def stats(self) -> SchedulerStats: ...

    def audit(self) -> list[str]: ...
