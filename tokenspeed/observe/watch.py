"""An observer around the scheduler: the loop does not know it is there, and the core is told no time."""

from collections.abc import Callable, Sequence

from control_plane.messages import (
    Abort,
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    FinishReason,
    NoteKind,
    RequestSpec,
)
from control_plane.rounds.wrapped import WrappedScheduler
from control_plane.scheduler.feedback import Ended
from control_plane.scheduler.scheduler import Scheduler
from tokenspeed.observe.requests import RequestWatch
from tokenspeed.observe.rounds import RoundWatch


class WatchedScheduler(WrappedScheduler):
    """A scheduler whose requests and rounds are timed with `clock` (seconds), read once for each call that matters."""

    def __init__(self, scheduler: Scheduler | WrappedScheduler, clock: Callable[[], float]) -> None:
        super().__init__(scheduler)
        self.clock = clock
        self.requests = RequestWatch()
        self.rounds = RoundWatch()

    def submit(self, specs: Sequence[RequestSpec]) -> list[int]:
        """Note who enters."""
        keys = self._scheduler.submit(specs)
        if keys:
            now = self.clock()
            for key, spec in zip(keys, specs, strict=True):
                self.requests.submitted(key, spec, now)
        return keys

    def advance(self, events: Sequence[Event]) -> list[Ended]:
        """Note tokens before they are applied, since then they are still awaited, and ends after."""
        now = self.clock()
        told: set[int] = set()
        for event in events:
            if isinstance(event, ExtendResult) and event.round not in told:
                told.add(event.round)
                if self._scheduler.awaits_round(event.round):
                    self.requests.landed(event, self._scheduler.void_keys(event.round), now)
        ended = self._scheduler.advance(events)
        for event in events:
            if isinstance(event, Finish):
                self.requests.ended(event.key, event.reason, now)
            elif isinstance(event, Abort):
                self.requests.ended(event.key, FinishReason.ABORT, now)
        for end in ended:
            self.requests.ended(end.key, end.reason, now)
        return ended

    def next_plan(self) -> ExecutionPlan:
        """Note who was admitted, and what is in the round."""
        plan = self._scheduler.next_plan()
        for note in plan.notes:
            if note.kind is NoteKind.RETRACTED or note.kind is NoteKind.ROLLED_BACK:
                self.requests.thrown_out(note.key)
        if plan.has_work:
            now = self.clock()
            if plan.bindings:
                hits = {note.key: note.numbers[0] for note in plan.notes if note.kind is NoteKind.HIT}
                for binding in plan.bindings:
                    self.requests.admitted(binding.key, hits.get(binding.key, 0), now)
            if plan.forward is not None:
                self.rounds.planned(plan.round, plan.forward, now)
        return plan
