"""The small language of scenario tests: submit, run, land, abort, and expect to read certain rounds.

    rounds.submit(a=2048, b=1024, c=(10240, 5))
    rounds.run(budget_tokens=6144)
    rounds.expect('''
        1 | prefill a[0:2048) b[0:1024) c[0:3072) | line held by c
    ''')

A number is a prompt length, a pair adds the declared output. Prompts of different requests share nothing unless
`tokens` are given. `expect` compares the rounds since the last `expect`; `--golden-update` rewrites its text.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from control_plane.config import CacheGroupConfig, Role, SchedulerConfig
from control_plane.loop.commit import Committed, StopRule, StopRules, commit
from control_plane.messages import Abort, Bootstrapped, Event, ExecutionPlan, RequestSpec
from control_plane.messages.columns import pack
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.render import Narrator
from control_plane.rounds.writer import TraceWriter
from control_plane.scheduler.feedback import Ended
from control_plane.scheduler.scheduler import Scheduler
from control_plane.testing.checkers import PlanChecker
from control_plane.testing.golden import compare
from control_plane.testing.simulated_device import Script, SimulatedDevice, count_up

WEATHER = ("fail", "lose", "silent", "fail_ops", "keeps_stores", "keeps_transfers")


class Follower(Protocol):
    """Somebody beside the story who sees what passes between scheduler and device."""

    def planned(self, plan: ExecutionPlan) -> None:
        """A plan with work was made."""
        ...

    def landing(self, plan: ExecutionPlan) -> None:
        """The oldest plan that is out was executed; its reports follow."""
        ...

    def heard(self, events: Sequence[Event]) -> None:
        """Facts that the scheduler is about to hear of."""
        ...


def small_config(**changes: Any) -> SchedulerConfig:
    """A configuration for stories: one full group, pages of 4 tokens, 64 blocks, batch 8. `pool` and `P` are short."""
    granularity = changes.pop("P", 4)
    settings: dict[str, Any] = {
        "prefix_granularity": granularity,
        "max_scheduled_tokens": changes.pop("budget_tokens", 64),
        "max_batch_size": changes.pop("batch", 8),
        "device_blocks": changes.pop("pool", 64),
        "groups": (CacheGroupConfig("full", block_granularity=granularity),),
        "max_context_tokens": 1 << 20,
    }
    return SchedulerConfig(**{**settings, **changes})


class Rounds:
    """A scheduler, a scripted device, and what happened so far in words. Every plan is checked, every round audited."""

    def __init__(self, script: Script = count_up, **config: Any) -> None:
        """`config` are settings of `small_config`, and of the device's weather (`SimulatedDevice`)."""
        self._settings: dict[str, Any] = {}
        self._weather: dict[str, Any] = {}
        self._script = script
        self._scheduler: Scheduler | None = None
        self._calls: Scheduler | RecordingScheduler | None = None
        self._recording: TraceWriter | None = None
        self._record_path: Path | None = None
        self.configure(**config)
        self._narrator = Narrator()
        self._rules = StopRules()
        self._lines: list[str] = []
        self._unread = 0
        self._early: list[Callable[[], None]] = []
        self._pending: list[Event] = []
        self._followers: list[Follower] = []
        self._out: deque[ExecutionPlan] = deque()
        self.keys: dict[str, int] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reasons: dict[str, str] = {}
        self.messages: dict[str, str] = {}  # of requests that the scheduler itself ended
        self.plans: list[ExecutionPlan] = []

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of this story; made by the first call that needs it."""
        return self.begin()

    def begin(self) -> Scheduler:
        """Make the scheduler, if this is the beginning, and hand in what was submitted so far."""
        if self._scheduler is None:
            self._scheduler = Scheduler(small_config(**self._settings))
            self._calls = self._scheduler
            if self._record_path is not None:
                self._recording = TraceWriter(self._record_path, self._scheduler.config)
                clock_us = partial(next, count(0, 1000))
                self._calls = RecordingScheduler(self._scheduler, self._recording, clock_us=clock_us)
            self._checker = PlanChecker(self._scheduler)
            early, self._early = self._early, []
            for submission in early:
                submission()
        return self._scheduler

    def configure(self, **config: Any) -> None:
        """Settings for a story that has not begun."""
        assert self._scheduler is None, "the story has begun"
        for setting, value in config.items():
            (self._weather if setting in WEATHER else self._settings)[setting] = value
        self._device = SimulatedDevice(self._script, **self._weather)

    def submit(
        self,
        *,
        tokens: Mapping[str, Sequence[int]] | None = None,
        namespace: str = "",
        stop_token_ids: Sequence[int] = (),
        bootstraps: bool = True,
        **requests: int | tuple[int, int | None],
    ) -> None:
        """Hand in requests by name, in order. `tokens` gives the prompts of some of them.

        Before the first round this only takes note, so that `run` can still say the configuration. In split roles the
        peer knows of them at once, unless nobody `bootstraps` them.
        """
        if self._scheduler is None:
            self._early.append(
                lambda: self.submit(
                    tokens=tokens,
                    namespace=namespace,
                    stop_token_ids=stop_token_ids,
                    bootstraps=bootstraps,
                    **requests,
                )
            )
            return
        specs: list[RequestSpec] = []
        for name, size in requests.items():
            prompt_tokens, max_new_tokens = size if isinstance(size, tuple) else (size, None)
            # Prompts differ in their first token, so that nobody shares a page by accident.
            begin = (len(self.keys) + len(specs) + 1) * 1_000_000
            prompt = (tokens or {}).get(name, range(begin, begin + prompt_tokens))
            assert len(prompt) == prompt_tokens, f"{name} has {prompt_tokens} tokens"
            specs.append(
                RequestSpec(
                    name,
                    pack(prompt),
                    max_new_tokens,
                    namespace=namespace,
                    stop_token_ids=tuple(stop_token_ids),
                )
            )
        keys = self._called.submit(specs)
        self._narrator.submitted(keys, specs)
        for key, spec in zip(keys, specs, strict=True):
            self.keys[spec.id] = key
            self.outputs[spec.id] = []
            limit = self.scheduler.max_new_tokens(spec)
            self._rules.add(key, StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=limit))
        if bootstraps and self.scheduler.role is not Role.FUSED:
            self._advance([Bootstrapped(key) for key in keys])

    def run(self, rounds: int = 1, **config: Any) -> None:
        """Plan up to `rounds` rounds; results land as late as the overlap depth allows."""
        if config:
            self.configure(**config)
        for _ in range(rounds):
            while not self.scheduler.has_room:
                self.land()
            self._advance([])
            if not self._plan() and self._device.plans_out:
                self.land()

    def run_to_end(self, *, limit: int = 2000) -> None:
        """Run until nobody is left; at most `limit` rounds, or it is a stall."""
        for _ in range(limit):
            if not self.scheduler.requests and not self._device.plans_out:
                self._advance([])
                if not self.scheduler.stats().copies_out:
                    return
            self.run()
        raise AssertionError(f"not over after {limit} rounds: {self.scheduler.stats()}")

    def land(self) -> None:
        """The oldest forward that is out reports."""
        plan = self._out.popleft()
        for follower in self._followers:
            follower.landing(plan)
        for letter in self._device.land():
            self._advance(letter)

    def land_all(self) -> None:
        """Every plan that is out reports."""
        while self._out:
            self.land()

    def record(self, path: Path) -> None:
        """Leave a recording of this story, which has not begun; a millisecond passes with every frame."""
        assert self._scheduler is None, "the story has begun"
        self._record_path = path

    def close_record(self) -> None:
        """The recording is whole."""
        assert self._recording is not None, "nothing was recorded"
        self._recording.close()

    def watch(self, follower: Follower) -> None:
        """From now on somebody follows this story."""
        self._followers.append(follower)

    def end_stores(self, *ops: int) -> None:
        """These stores, or all that are out, are acknowledged, where the device keeps them."""
        for op in ops or tuple(self._device.stores_out):
            self._advance([self._device.end_store(op)])

    def end_loads(self) -> None:
        """Load-backs that never ended, so that the device gave up on their rounds, end after all."""
        for event in self._device.end_loads():
            self._advance([event])

    def end_transfer(self, name: str, *, failure: str = "") -> None:
        """The peer is done with a request's pages, where the device keeps transfers."""
        self._advance([self._device.end_transfer(self.keys[name], failure=failure)])

    def abort(self, *names: str) -> None:
        """The clients of these requests give up; told with the next round or landing."""
        self.begin()
        for name in names:
            self._rules.drop(self.keys[name])
            self.reasons.setdefault(name, "abort")
            self._pending.append(Abort(self.keys[name]))

    def tell(self, *events: Event) -> None:
        """Other facts from outside, told with the next round or landing."""
        self._pending += events

    def deliver(self, *events: Event) -> None:
        """These facts arrive now, together and in this order; among them may be that clients gave up."""
        names = {key: name for name, key in self.keys.items()}
        for event in events:
            if isinstance(event, Abort):
                self._rules.drop(event.key)
                self.reasons.setdefault(names[event.key], "abort")
        self._advance(list(events))

    def expect(self, text: str) -> None:
        """The rounds since the last `expect` must read like this."""
        unread, self._unread = self._unread, len(self._lines)
        compare("\n".join(self._lines[unread:]), text)

    def history(self) -> str:
        """Every round so far."""
        return "\n".join(self._lines)

    def skip(self) -> None:
        """The rounds so far are somebody else's story: the next `expect` begins behind them."""
        self._unread = len(self._lines)

    def audit(self) -> None:
        """The books add up."""
        assert self.scheduler.audit() == []

    @property
    def _called(self) -> Scheduler | RecordingScheduler:
        self.begin()
        assert self._calls is not None
        return self._calls

    def _plan(self) -> bool:
        plan = self._called.next_plan()
        self._checker.check(plan)
        line = self._narrator.planned(plan)
        if line != "-":
            self._lines.append(line)
        self.plans.append(plan)
        self.audit()
        if plan.has_work:
            self._out.append(plan)
            for follower in self._followers:
                follower.planned(plan)
            self._device.execute(plan)
        return plan.has_work

    def _advance(self, arrived: list[Event]) -> None:
        for follower in self._followers:
            follower.heard([*arrived, *self._pending])
        events, outputs = commit(arrived, self._rules, self.scheduler)
        events += self._pending
        self._pending = []
        ended = self._called.advance(events)
        self._narrator.happened(events)
        self._publish(outputs, ended)
        self.audit()

    def _publish(self, outputs: Sequence[Committed], ended: Sequence[Ended]) -> None:
        names = {key: name for name, key in self.keys.items()}
        for output in outputs:
            self.outputs[names[output.key]] += output.tokens
            if output.reason is not None:
                self.reasons[names[output.key]] = output.reason.value
        for end in ended:
            self._rules.drop(end.key)
            self.reasons[names[end.key]] = end.reason.value
            self.messages[names[end.key]] = end.message
