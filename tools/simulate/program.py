"""The words of a run: a setting, and steps in the order in which they happen.

A program is plain data. Any step can be left out and the rest still means something, so a failing program can be made
short; and it prints as what can be pasted into a test.
"""

from typing import Literal

from msgspec import Struct, structs

from control_plane import Role, SchedulerConfig
from data_plane.memory.layout import plan_layout
from data_plane.model.stamp_options import StampOptions, group_layouts
from data_plane.options import DeviceOptions
from tokenspeed.assembly import cache_groups

Kind = Literal["full", "sliding", "state"]
Work = Literal["forward", "half a forward", "store", "load", "page"]
News = Literal["forward", "store", "load", "transfer"]
"""What is told of: the end of a forward, of a copy, or of a request on its way between two engines."""
Late = Literal["abort", "finish", "retract", "bootstrapped", "landed", "sent", "failed"]


class Group(Struct, frozen=True, repr_omit_defaults=True):
    """A cache group: its granularity is the prefix granularity divided by `fraction`."""

    kind: Kind = "full"
    fraction: int = 1
    packing: int = 1
    window: int = 0
    replayable: bool = False


class Peer(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What the engine that prefills for another has of its own; all else is as there."""

    budget_tokens: int = 32
    batch: int = 4
    pool: int = 32
    host_blocks: int = 0
    overlap_depth: int = 0
    order_seed: int = 0


class Setting(Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a program runs on: one engine, or with a `peer` one that decodes what the peer prefilled.

    `order_seed` decides in which order the device's streams get on.
    """

    prefix_granularity: int = 4
    groups: tuple[Group, ...] = (Group(),)
    budget_tokens: int = 32
    batch: int = 4
    context_tokens: int = 128
    pool: int = 32
    host_blocks: int = 0
    overlap_depth: int = 0
    mixed: bool = True
    prefix_cache: bool = True
    sliding_prepay: bool = True
    safe_steps: int = 4096
    max_overtakes: int | None = 32
    stop_probability: float = 0.0
    recompute_failed_transfers: bool = True
    order_seed: int = 0
    peer: Peer | None = None

    def by_role(self) -> dict[Role, "Setting"]:
        """What each engine runs on. The one whose tokens clients read is the last."""
        if self.peer is None:
            return {Role.FUSED: self}
        prefilling = structs.replace(self, peer=None, **structs.asdict(self.peer))
        return {Role.PREFILL: prefilling, Role.DECODE: self}

    def config(self, role: Role) -> SchedulerConfig:
        """The scheduler's configuration: groups as the device packs them, the budget raised to what is needed."""
        config = SchedulerConfig(
            prefix_granularity=self.prefix_granularity,
            max_scheduled_tokens=self.budget_tokens,
            max_batch_size=self.batch,
            device_blocks=self.pool,
            groups=cache_groups(plan_layout(group_layouts(self.stamp(), self.prefix_granularity)).groups),
            max_context_tokens=self.context_tokens,
            role=role,
            overlap_depth=self.overlap_depth,
            mixed=self.mixed,
            prefix_cache=self.prefix_cache,
            sliding_prepay=self.sliding_prepay,
            safe_steps=self.safe_steps,
            max_overtakes=self.max_overtakes,
            host_blocks=self.host_blocks,
            recompute_failed_transfers=self.recompute_failed_transfers,
        )
        least = self.batch + config.min_prefill_chunk_tokens
        return structs.replace(config, max_scheduled_tokens=max(self.budget_tokens, least))

    def stamp(self) -> StampOptions:
        """The model: as many groups of the same shape."""
        return StampOptions(
            group_kinds=tuple(group.kind for group in self.groups),
            block_granularities=tuple(self.prefix_granularity // group.fraction for group in self.groups),
            packings=tuple(group.packing for group in self.groups),
            windows=tuple(group.window for group in self.groups),
            replayables=tuple(group.replayable for group in self.groups),
            stop_probability=self.stop_probability,
            max_context_tokens=self.context_tokens,
        )

    def device(self) -> DeviceOptions:
        """The device's options. The order of its work is checked."""
        return DeviceOptions(
            model="stamp",
            prefix_granularity=self.prefix_granularity,
            max_batch_size=self.batch,
            max_context_tokens=self.context_tokens,
            device_blocks=self.pool,
            host_blocks=self.host_blocks,
            check_order=True,
        )


class Submit(Struct, frozen=True, repr_omit_defaults=True):
    """A prompt: so many tokens of a base text that others share, then some of its own. `seed` 0 is greedy.

    With `stops_after` it ends after so many tokens, which only its client knows beforehand.
    """

    base: int = 0
    shared_tokens: int = 0
    own_tokens: int = 1
    max_new_tokens: int | None = None
    stops_after: int | None = None
    seed: int = 0
    namespace: str = ""


class Leave(Struct, frozen=True, repr_omit_defaults=True):
    """The client of the n-th request gives up; or it has what it wanted (a stop string), so its pages stay cached."""

    index: int
    is_content: bool = False


class Drop(Struct, frozen=True):
    """The engine that prefills loses the n-th request; its client still waits."""

    index: int


class Run(Struct, frozen=True):
    """So many rounds, or fewer: until nothing is left to do."""

    rounds: int


class Latency(Struct, frozen=True, repr_omit_defaults=True):
    """From now on forwards land, and stores are acknowledged, so many rounds after they were planned.

    A forward lands earlier where the scheduler cannot plan without it. Each page of a transfer, and the news that a
    peer knows of a request, takes `transfer` rounds. What is told of stores and transfers takes up to `spread` rounds
    more, each its own number of them, so it comes out of order. `peer`: this is about the engine that prefills for the
    other.
    """

    forward: int = 1
    store: int = 1
    transfer: int = 0
    spread: int = 0
    peer: bool = False


class Fail(Struct, frozen=True, repr_omit_defaults=True):
    """The next forward raises, or the next copy of its kind fails: at its first step, or at its last.

    Half a forward computes the first half of its rows and then raises.

    A page is one of a transfer, which fails with it.
    """

    what: Work
    is_late: bool = False
    peer: bool = False


class Withhold(Struct, frozen=True, repr_omit_defaults=True):
    """The next forward does not compute, since the device could not fill its pages: all its requests retract."""

    peer: bool = False


class Repeat(Struct, frozen=True, repr_omit_defaults=True):
    """What is told next of this kind is told again, some rounds later."""

    news: News
    peer: bool = False


class Hold(Struct, frozen=True, repr_omit_defaults=True):
    """What would be told next of this kind is not told before nothing else moves.

    A load-back or forward that does not end holds up the rounds behind it as well. `is_lost`: it does not end before
    every client has given up.
    """

    news: News
    is_lost: bool = False
    peer: bool = False


class GiveUp(Struct, frozen=True, repr_omit_defaults=True):
    """The next load-back beside a forward does not end: the device gives its round up, so all its requests retract.

    That it ended after all is told when nothing else moves.
    """

    peer: bool = False


class Tell(Struct, frozen=True, repr_omit_defaults=True):
    """If the n-th request is over, an engine is told something of it, as if it were not."""

    index: int
    what: Late
    peer: bool = False


Step = Submit | Leave | Drop | Run | Latency | Fail | Withhold | Repeat | Hold | GiveUp | Tell


class Program(Struct, frozen=True):
    """What happens, on what. `seed` says where it was drawn from; a run does not look at it."""

    setting: Setting
    steps: tuple[Step, ...]
    seed: int = -1

    def as_test(self, reason: str) -> str:
        """The text of a test that runs this program."""
        steps = "".join(f"            {step!r},\n" for step in self.steps)
        return (
            f"def test_seed_{self.seed}() -> None:\n"
            f'    """{reason}"""\n'
            f"    program = Program(\n"
            f"        {self.setting!r},\n"
            f"        (\n{steps}        ),\n"
            f"    )\n"
            f"    assert run(program).failure is None\n"
        )
