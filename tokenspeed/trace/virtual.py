"""A run in virtual time: arrivals come when they come, rounds last as long as a cost model says.

The scheduler is the real one, and so is the order of a pass of the round loop: results, submissions, ends, plans. The
device is the stamp model, which checks every block it reads, or a script that only says tokens.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from control_plane import ConfigError, RequestRejected, Scheduler, SchedulerConfig
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.messages import Abort, Event, ExecutionPlan, RequestSpec
from control_plane.messages.wire import decode_events
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.writer import TraceWriter
from control_plane.testing.simulated_device import Script, SimulatedDevice
from tokenspeed.errors import GenerationFailed
from tokenspeed.trace.arrivals import Arrival, Arrivals
from tokenspeed.trace.cost import CostModel


class VirtualDevice(Protocol):
    """Takes plans, and reports the oldest one that is out when it is told to."""

    def execute(self, plan: ExecutionPlan) -> None:
        """Take a plan."""
        ...

    def land(self) -> list[list[Event]]:
        """The letters of the oldest plan."""
        ...

    def close(self) -> None:
        """No more plans come."""
        ...


class StampDevice:
    """The stamp model on a real data plane, without threads: what it would read wrongly it raises."""

    def __init__(self, config: SchedulerConfig) -> None:
        # Imported here: only who runs a stamp model pays for a data plane.
        from data_plane.builder import build_device
        from data_plane.forward_thread import Deliver, ForwardStepped
        from data_plane.model.stamp import StampOptions, StampRunner
        from data_plane.options import DeviceOptions
        from data_plane.rounds import Rounds

        self._letters: list[list[Event]] = []

        def stepped(rounds: Rounds, deliver: Deliver) -> ForwardStepped:
            self._forward = ForwardStepped(rounds, deliver)
            return self._forward

        stamp = StampOptions(
            max_context_tokens=config.max_context_tokens,
            group_kinds=tuple(group.kind.value for group in config.groups),
            block_granularities=tuple(group.block_granularity for group in config.groups),
            packings=tuple(group.packing for group in config.groups),
            windows=tuple(group.window for group in config.groups),
            replayables=tuple(group.replayable for group in config.groups),
        )
        options = DeviceOptions(
            model="stamp",
            prefix_granularity=config.prefix_granularity,
            max_batch_size=config.max_batch_size,
            max_context_tokens=config.max_context_tokens,
            device_blocks=config.device_blocks,
            host_blocks=config.host_blocks,
        )
        runner = StampRunner(stamp)
        specs, self._handle = build_device(
            options, runner=runner, progress=lambda line: None, inline=True, forward=stepped
        )
        laid_out = [group.packing for group in specs.groups]
        if laid_out != [group.packing for group in config.groups]:
            raise ConfigError([f"groups: the stamp model packs {laid_out} blocks into a parent; give these as packing"])
        self._handle.start(lambda letter: self._letters.append(decode_events(letter)))

    def execute(self, plan: ExecutionPlan) -> None:
        """Compute it now; it is reported when it lands."""
        self._handle.execute(plan)

    def land(self) -> list[list[Event]]:
        """The letters of the oldest plan, its stores' among them."""
        self._forward.land()
        while self._forward.land_store():
            pass
        letters, self._letters = self._letters, []
        if (failure := self._handle.failure) is not None:
            raise GenerationFailed(f"the stamp model found a fault: {failure}")
        return letters

    def close(self) -> None:
        """See `VirtualDevice`."""
        self._handle.close()


def scripted(script: Script) -> SimulatedDevice:
    """A device that says what it is told to: nothing is computed, and nothing is checked."""
    return SimulatedDevice(script)


class Outcome:
    """What a run came to: its length in virtual time, and its rounds."""

    def __init__(self, *, end_us: int, rounds: int, unserved: Sequence[str]) -> None:
        self.end_us = end_us
        self.rounds = rounds
        self.unserved = unserved  # ids of requests that this configuration refuses


class VirtualRun:
    """One run. `record` gets every step, with virtual times."""

    def __init__(
        self, config: SchedulerConfig, arrivals: Arrivals, cost: CostModel, device: VirtualDevice, record: Path
    ) -> None:
        self._arrivals = arrivals
        self._cost = cost
        self._device = device
        self._now = 0
        self._free_at = 0
        self._rules = StopRules()
        self._landings: deque[int] = deque()  # when each round that is out lands, the oldest first
        self._leaves: list[tuple[int, int]] = []  # (when, key) of clients that give up
        self._unserved: list[str] = []
        self._rounds = 0
        self._plain = Scheduler(config)
        self._writer = TraceWriter(record, config)
        self._scheduler = RecordingScheduler(self._plain, self._writer, clock_us=lambda: self._now)

    def run(self, progress: Callable[[float], None] | None = None) -> Outcome:
        """Until everybody is served. `progress` is told of the requests that have come. Raises GenerationFailed."""
        requests, specs = self._arrivals.requests, self._arrivals.specs()
        come = 0
        try:
            while True:
                events = self._arrived()
                due = []
                while come < len(requests) and requests[come].at_us <= self._now:
                    due.append((requests[come], next(specs)))
                    come += 1
                self._pass(events, due)
                following = [requests[come].at_us] if come < len(requests) else []
                following += list(self._landings)[:1] + [when for when, _ in self._leaves[:1]]
                if progress is not None:
                    progress(come)
                if not following:
                    break
                self._now = max(self._now, min(following))
        finally:
            self._device.close()
            self._writer.close()
        if self._plain.requests:
            name = next(iter(self._plain.requests.values())).spec.id
            raise GenerationFailed(f"nothing moves, but {name} is not over: {self._plain.explain(name)}")
        return Outcome(end_us=self._now, rounds=self._rounds, unserved=self._unserved)

    def _arrived(self) -> list[Event]:
        """What the device has reported by now."""
        events: list[Event] = []
        while self._landings and self._landings[0] <= self._now:
            self._landings.popleft()
            events += [event for letter in self._device.land() for event in letter]
        return events

    def _pass(self, arrived: list[Event], due: Sequence[tuple[Arrival, RequestSpec]]) -> None:
        """One pass of the round loop."""
        events, _ = commit(arrived, self._rules, self._scheduler)
        accepted = []
        for arrival, spec in due:
            try:
                self._scheduler.check(spec)
            except RequestRejected:
                self._unserved.append(arrival.id)
                continue
            accepted.append((arrival, spec))
        keys = self._scheduler.submit([spec for _, spec in accepted])
        for key, (arrival, spec) in zip(keys, accepted, strict=True):
            limit = self._scheduler.max_new_tokens(spec)
            self._rules.add(key, StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=limit))
            if arrival.leaves_us is not None:
                heapq.heappush(self._leaves, (arrival.at_us + arrival.leaves_us, key))
        while self._leaves and self._leaves[0][0] <= self._now:
            _, key = heapq.heappop(self._leaves)
            if self._rules.get(key) is not None:
                self._rules.drop(key)
                events.append(Abort(key))
        for end in self._scheduler.advance(events):
            self._rules.drop(end.key)
        while self._scheduler.has_room and (plan := self._scheduler.next_plan()).has_work:
            self._rounds += 1
            self._device.execute(plan)
            begin = max(self._now + round(self._cost.plan_us), self._free_at)
            self._free_at = begin + self._cost.of(plan)
            self._landings.append(self._free_at)
