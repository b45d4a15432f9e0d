"""Random programs: a configuration and a list of steps, run on a real scheduler and a stamp device."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct, structs

from control_plane import GroupKind, RequestRejected, Scheduler, SchedulerConfig
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.messages import Abort, Event, RequestSpec, Sampling
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_events, encode_plan
from control_plane.testing.checkers import PlanChecker
from data_plane.builder import build_device
from data_plane.forward_thread import Deliver, ForwardStepped
from data_plane.model.base import GroupLayout, ModelRunner
from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.faulty_copies import FaultyCopies
from data_plane.options import DeviceOptions
from data_plane.rounds import Rounds
from data_plane.streams.inline_streams import InlineStreams
from data_plane.streams.sim_streams import SimStreams
from tokenspeed.assembly import cache_groups

STOP_TOKEN = 0


class Submit(Struct, frozen=True):
    """A prompt: so many tokens of a base text that others share, then some of its own."""

    base: int
    shared_tokens: int
    own_tokens: int
    max_new_tokens: int | None
    seed: int


class Leave(Struct, frozen=True):
    """The client of the n-th request gives up."""

    index: int


class Run(Struct, frozen=True):
    """So many rounds."""

    rounds: int


Step = Submit | Leave | Run


class Group(Struct, frozen=True):
    """A cache group: its granularity is the prefix granularity divided by `fraction`."""

    kind: GroupKind
    fraction: int
    packing: int = 1
    window: int = 0
    replayable: bool = False


class Setting(Struct, frozen=True):
    """What a program runs on."""

    prefix_granularity: int
    groups: tuple[Group, ...]
    budget_tokens: int
    batch: int
    pool: int
    overlap_depth: int
    mixed: bool
    prefix_cache: bool
    safe_steps: int
    max_overtakes: int | None
    stop_probability: float
    host_blocks: int = 0
    context_tokens: int = 150

    def config(self, groups: Sequence[GroupLayout]) -> SchedulerConfig:
        """The scheduler's configuration for groups as the device laid them out."""
        config = SchedulerConfig(
            prefix_granularity=self.prefix_granularity,
            max_scheduled_tokens=self.budget_tokens,
            max_batch_size=self.batch,
            device_blocks=self.pool,
            groups=cache_groups(groups),
            max_context_tokens=self.context_tokens,
            overlap_depth=self.overlap_depth,
            mixed=self.mixed,
            prefix_cache=self.prefix_cache,
            safe_steps=self.safe_steps,
            max_overtakes=self.max_overtakes,
            host_blocks=self.host_blocks if self.prefix_cache else 0,
        )
        least = self.batch + config.min_prefill_chunk_tokens
        return structs.replace(config, max_scheduled_tokens=max(self.budget_tokens, least))

    def stamp(self, **changes: Any) -> StampOptions:
        """The model: as many groups of the same shape."""
        return StampOptions(
            group_kinds=tuple(group.kind.value for group in self.groups),
            block_granularities=tuple(self.prefix_granularity // group.fraction for group in self.groups),
            packings=tuple(group.packing for group in self.groups),
            windows=tuple(group.window for group in self.groups),
            replayables=tuple(group.replayable for group in self.groups),
            stop_probability=self.stop_probability,
            max_context_tokens=max(512, self.context_tokens),
            **changes,
        )


@st.composite
def mixes_of_groups(draw: st.DrawFn) -> tuple[Group, ...]:
    """One to three groups of any kind; replayable ones beside something that is matched, and never beside state."""
    kinds = draw(st.lists(st.sampled_from([*GroupKind, GroupKind.FULL, GroupKind.SLIDING]), min_size=1, max_size=3))
    may_replay = GroupKind.STATE not in kinds and draw(st.booleans())
    groups = []
    for index, kind in enumerate(kinds):
        is_sliding = kind is GroupKind.SLIDING
        replayable = may_replay and is_sliding and index > 0 and draw(st.booleans())
        window = draw(st.integers(1, 14)) if is_sliding else 0
        groups.append(Group(kind, draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3)), window, replayable))
    return tuple(groups)


@st.composite
def settings_of_programs(draw: st.DrawFn) -> Setting:
    """Small pools, budgets and pages."""
    return Setting(
        prefix_granularity=draw(st.sampled_from([4, 8, 16, 64])),
        groups=draw(mixes_of_groups()),
        budget_tokens=draw(st.integers(2, 40)),
        batch=draw(st.integers(1, 6)),
        pool=draw(st.integers(8, 60)),
        overlap_depth=draw(st.integers(0, 1)),
        mixed=draw(st.booleans()),
        prefix_cache=draw(st.integers(0, 4)) > 0,
        safe_steps=draw(st.sampled_from([1, 4, 4096])),
        max_overtakes=draw(st.sampled_from([0, 2, 32, None])),
        stop_probability=draw(st.sampled_from([0.0, 0.02, 0.2])),
        host_blocks=draw(st.sampled_from([0, 0, 3, 12, 100])),
    )


submissions = st.builds(
    Submit,
    base=st.integers(0, 1),
    shared_tokens=st.integers(0, 90),
    own_tokens=st.integers(1, 20),
    max_new_tokens=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 1),
)
steps_of_programs = st.lists(
    st.one_of(submissions, submissions, st.builds(Run, st.integers(1, 8)), st.builds(Leave, st.integers(0, 20))),
    min_size=1,
    max_size=24,
)


class Story(Struct):
    """What came of one request."""

    prompt: list[int]
    limit_tokens: int
    sampling: Sampling
    tokens: list[int]
    reason: str | None = None


class Program:
    """Runs steps on a scheduler and a device whose rounds land as late as the overlap depth allows."""

    def __init__(
        self,
        setting: Setting,
        *,
        strict: bool = True,
        fail_rounds: Collection[int] = (),
        fail_ops: Collection[int] = (),
        store_delay: int = 0,
        order_seed: int | None = None,
        scheduler: Callable[[SchedulerConfig], Scheduler] = Scheduler,
    ) -> None:
        """Stores are acknowledged after `store_delay` more rounds; those of `fail_ops`, and such load-backs, fail.

        With an `order_seed` the device's streams run as late and as badly ordered as that seed makes them.
        """
        self.setting = setting
        self.stories: dict[int, Story] = {}
        self.plans: list[bytes] = []
        self.audits_every = 1  # rounds: an audit reads the whole pool
        self.rules = StopRules()
        self._may_fail = bool(fail_rounds)
        self._store_delay = store_delay
        self._rounds_since_store = 0
        self._options = setting.stamp(strict=strict)
        runner: ModelRunner = StampRunner(self._options)
        if fail_rounds:
            runner = FaultyRunner(runner, fail_rounds=set(fail_rounds))
        options = DeviceOptions(
            model="stamp",
            prefix_granularity=setting.prefix_granularity,
            max_batch_size=setting.batch,
            max_context_tokens=setting.context_tokens,
            device_blocks=setting.pool,
            host_blocks=setting.host_blocks if setting.prefix_cache else 0,
            check_order=True,
        )
        specs, self._device = build_device(
            options,
            runner=runner,
            streams=InlineStreams if order_seed is None else partial(SimStreams, order_seed),
            forward=self._make_forward,
            copies=partial(FaultyCopies, fail_ops=frozenset(fail_ops)),
        )
        self.scheduler = scheduler(setting.config(specs.groups))
        self._checker = PlanChecker(self.scheduler)
        self._answers: deque[bytes] = deque()
        self._device.start(self._answers.append)

    def _make_forward(self, rounds: Rounds, deliver: Deliver) -> ForwardStepped:
        self._forward = ForwardStepped(rounds, deliver)
        return self._forward

    def run(self, steps: list[Step]) -> None:
        """All the steps, then until nobody is left."""
        for step in steps:
            match step:
                case Submit():
                    self.submit(step)
                case Leave(index=index):
                    if index < len(self.stories):
                        self._abort(list(self.stories)[index])
                case Run(rounds=rounds):
                    for _ in range(rounds):
                        self._round()
        self.finish()
        self.check_order()

    def finish(self) -> None:
        """§8.3: every request ends within a bounded number of rounds."""
        tokens = sum(len(story.prompt) + story.limit_tokens for story in self.stories.values())
        for _ in range(100 + 20 * tokens):
            if not self.scheduler.requests and not self._has_flights and not self.scheduler.stats().copies_out:
                return
            self._round()
        raise AssertionError(f"no end in sight: {self.scheduler.stats()}")

    def check_tokens(self) -> None:
        """§8.4: what each request said is what it says when it runs alone, or the beginning of that if it left."""
        for story in self.stories.values():
            alone = stamp_continuation(
                story.prompt,
                story.limit_tokens,
                options=self._options,
                sampling=story.sampling,
                stop_token_ids=(STOP_TOKEN,),
            )
            assert self._may_fail or story.reason != "error", f"{story} failed"
            if story.reason in ("abort", "error"):
                alone = alone[: len(story.tokens)]
            assert story.tokens == alone, f"{story} differs from a run alone"

    def check_books(self) -> None:
        """§8.1: with the cache cleared the pool is as new."""
        assert self.scheduler.clear_cache(also_host=True)
        assert self.scheduler.audit() == []
        assert self.scheduler.stats().free_blocks == self.setting.pool
        assert self.scheduler.stats().host_used_blocks == 0

    def check_order(self) -> None:
        """§8.5: an order between any two operations on a block. What the host knows, it knows from what landed."""
        assert not self._device.violations, "\n".join(map(str, self._device.violations))

    def submit(self, step: Submit) -> None:
        shared = [1 + (step.base * 97 + position * 7) % 250 for position in range(step.shared_tokens)]
        own = [1 + (len(self.stories) * 31 + position * 3) % 250 for position in range(step.own_tokens)]
        sampling = Sampling(temperature=1.0, seed=step.seed) if step.seed else Sampling()
        spec = RequestSpec(
            f"r{len(self.stories)}",
            pack([*shared, *own]),
            step.max_new_tokens,
            stop_token_ids=(STOP_TOKEN,),
            sampling=sampling,
        )
        try:
            (key,) = self.scheduler.submit([spec])
        except RequestRejected:
            return
        limit = self.scheduler.max_new_tokens(spec)
        self.rules.add(key, StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=limit))
        self.stories[key] = Story([*shared, *own], limit, sampling, [])

    def _abort(self, key: int) -> None:
        self.rules.drop(key)
        story = self.stories[key]
        story.reason = story.reason or "abort"
        self._advance([Abort(key)])

    def _round(self) -> None:
        if self._has_flights and not self.scheduler.has_room:
            self._land()
        plan = self.scheduler.next_plan()
        self._checker.check(plan)
        self.plans.append(encode_plan(plan))
        self._audit()
        if plan.has_work:
            self._device.execute(plan)
        elif self._has_flights:
            self._land()
        elif self._forward.stores_out:
            self._end_store()
        else:
            assert not self.scheduler.requests, f"stalled: {self.scheduler.stats()}"
        self._rounds_since_store += 1
        if self._forward.stores_out and self._rounds_since_store > self._store_delay:
            self._end_store()

    @property
    def _has_flights(self) -> bool:
        return self._device.stats().rounds_in_flight > 0

    def _land(self) -> None:
        self._forward.land()
        self._take_answers()

    def _end_store(self) -> None:
        self._rounds_since_store = 0
        self._forward.land_store()
        self._take_answers()

    def _take_answers(self) -> None:
        while self._answers:
            self._advance(decode_events(self._answers.popleft()))

    def _advance(self, arrived: list[Event]) -> None:
        events, outputs = commit(arrived, self.rules, self.scheduler)
        for end in self.scheduler.advance(events):
            self.rules.drop(end.key)
            self.stories[end.key].reason = end.reason.value
        for output in outputs:
            story = self.stories[output.key]
            story.tokens += output.tokens
            if output.reason is not None:
                story.reason = output.reason.value
        self._audit()

    def _audit(self) -> None:
        if len(self.plans) % self.audits_every == 0:
            assert self.scheduler.audit() == []
