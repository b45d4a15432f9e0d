"""Each fence between the streams of the two tiers matters: without it the checker reports and the model says otherwise.

A fence is taken away by leaving out what one stream waits for; an edge of the executor's order, by moving a step to
another stream; what only the host knows, by not asking it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from control_plane.messages import BlockList, ExecutionPlan, StoreSourceGuard
from data_plane.accesses import PlanAccesses
from data_plane.executor import Executor, RoundInFlight
from data_plane.lost import Lost
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.host_pages import HostPages
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import HostTables
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.block_copies import HostBlockCopies
from data_plane.ops.host_tier import StreamedHostTier
from data_plane.ops.table_edits import HostTableEdits
from data_plane.ops.zeroing import HostZeroing
from data_plane.ordering import OrderChecker, Violation
from data_plane.streams.base import NO_BLOCKS, Access, Stream, StreamEvent, Streams, Work
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedStreams
from data_plane.streams.sim_streams import SimStreams
from data_plane.testing.plans import PlanWriter
from tests.unit.test_executor_order import Detour

MIX = StampOptions(
    group_kinds=("full", "sliding", "state"),
    block_granularities=(4, 4, 4),
    packings=(1, 2, 1),
    windows=(0, 5, 0),
    max_context_tokens=64,
)
SEEDS = range(12)
SLOTS, HOST_BLOCKS = 8, 40
TIGHT_BLOCKS, ROOMY_BLOCKS = 14, 80
BEGINNING = [20, 21, 22, 23, 24, 25, 26, 27]
CROWD = range(1, 9)  # more rounds with copies in a row than a lane has buffers


class Mark:
    """A mark that knows its stream."""

    def __init__(self, inner: StreamEvent, stream: str) -> None:
        self.inner = inner
        self.stream = stream

    def query(self) -> bool:
        return self.inner.query()

    def wait_host(self) -> None:
        self.inner.wait_host()


class Hasty:
    """A stream that does not wait for marks of `ignored`."""

    def __init__(self, inner: Stream, ignored: str | None) -> None:
        self.name = inner.name
        self._inner = inner
        self._ignored = ignored

    def enqueue(self, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        self._inner.enqueue(work, label, access)

    def record(self) -> Mark:
        return Mark(self._inner.record(), self.name)

    def wait(self, event: StreamEvent) -> None:
        assert isinstance(event, Mark)
        if event.stream != self._ignored:
            self._inner.wait(event.inner)


class Damage(Struct, frozen=True):
    """What is left out: a wait (who, for whom), a detour's fence, or that the host asks whether stores are over."""

    fence: tuple[str, str] | None = None
    moved: str = "nothing"
    way: str = "load"
    left_out: str = "nothing"
    asks: bool = True


class DamagedStreams:
    """Streams under a checker, as if the executor and the host tier had used them with less care."""

    def __init__(self, inner: Streams, damage: Damage) -> None:
        self._inner = inner
        hasty, ignored = damage.fence or (None, None)
        self.write, self.load, forward = (
            Hasty(stream, ignored if stream.name == hasty else None)
            for stream in (inner.write, inner.load, inner.forward)
        )
        self.forward: Stream = forward
        if damage.moved != "nothing":
            way = self.load if damage.way == "load" else self.write
            self.forward = Detour(_Ways(forward, way), moved=damage.moved, left_out=damage.left_out)

    def close(self) -> None:
        self._inner.close()


class _Ways:
    """The forward stream, and the one that a detour takes."""

    def __init__(self, forward: Stream, way: Stream) -> None:
        self.forward, self.write, self.load = forward, way, way

    def close(self) -> None:
        """They are closed by whoever made them."""


class Act(Struct, frozen=True):
    """A plan; before it the host waits for some stores, after it for rounds until only `leaves` are out."""

    plan: ExecutionPlan
    awaited: tuple[int, ...] = ()
    leaves: int = 1


Story = Callable[[PlanWriter], Iterator[Act]]


def to_and_fro(guard: StoreSourceGuard, writer: PlanWriter) -> Iterator[Act]:
    """A beginning goes to the host, its blocks to others, and it comes back for the next request; three times.

    The pool is so small that what is given back is taken at once, and the host's blocks are used again each time.
    """
    writer.add(1, BEGINNING)
    yield Act(writer.plan({1: len(BEGINNING)}))
    for key in (1, 3, 5):
        stored = writer.store(key, len(BEGINNING), guard=guard)
        if guard is StoreSourceGuard.STREAM_ORDERED:
            writer.release(key)
        writer.add(key + 1, [key] * 7)
        yield Act(writer.plan({key + 1: 7}))
        if guard is StoreSourceGuard.PINNED_UNTIL_ACK:
            writer.release(key)
        yield Act(
            writer.plan(decodes=[key + 1]), awaited=() if guard is StoreSourceGuard.STREAM_ORDERED else stored.ops
        )
        writer.release(key + 1)
        writer.add(key + 2, [*BEGINNING, key], loads=stored)
        yield Act(clean_first(writer.plan({key + 2: 1})), awaited=stored.ops, leaves=0)
        writer.drop(stored)


def in_a_hurry(writer: PlanWriter) -> Iterator[Act]:
    """Every round stores another beginning, then every round loads one back, and the host waits only in between."""
    for key in CROWD:
        writer.add(key, [key, *BEGINNING[1:]])
    yield Act(writer.plan(dict.fromkeys(CROWD, len(BEGINNING))), leaves=0)
    everything = []
    for key in CROWD:
        everything.append(writer.store(key, len(BEGINNING)))
        writer.release(key)
        yield Act(writer.plan(), leaves=len(CROWD))
    awaited = tuple(op for stored in everything for op in stored.ops)
    for key, stored in zip(CROWD, everything, strict=True):
        writer.add(10 + key, [key, *BEGINNING[1:], key], loads=stored)
        yield Act(writer.plan({10 + key: 1}), awaited=awaited, leaves=len(CROWD))


ORDERED: Story = partial(to_and_fro, StoreSourceGuard.STREAM_ORDERED)
PINNED: Story = partial(to_and_fro, StoreSourceGuard.PINNED_UNTIL_ACK)
# The tokens before the first that each request of a story samples.
OF_BEGINNINGS = {1: BEGINNING} | {key: [*BEGINNING, key - 2] for key in (3, 5, 7)}
OF_CROWD = {10 + key: [key, *BEGINNING[1:], key] for key in CROWD}


def clean_first(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan, with the blocks that a load-back fills zeroed before."""
    loaded = tuple(BlockList(load.group, load.destinations) for load in plan.load_backs)
    return replace(plan, zero=plan.zero + loaded)


class Bench:
    """A stamp model with both tiers, over simulated streams that are damaged."""

    def __init__(self, seed: int, damage: Damage, *, device_blocks: int) -> None:
        runner = StampRunner(MIX)
        layout = plan_layout(runner.facts.groups)
        widths = [16] * len(layout.groups)
        counts = [(device_blocks + 1) * group.packing for group in layout.groups]
        sizes: dict[str, Any] = {"slots": SLOTS, "widths": widths, "block_counts": counts}
        tables = HostTables(**sizes)
        memory = ArenaMemory(layout, Arena(layout, device_blocks=device_blocks, device="cpu"), tables)
        runner.attach(memory, slots=SLOTS)
        self.checker = OrderChecker([group.packing for group in layout.groups], STREAM_NAMES)
        streams = DamagedStreams(OrderedStreams(SimStreams(seed), self.checker), damage)
        accesses = PlanAccesses(layout.groups, **sizes)
        lost = Lost(layout.groups, tables)
        pages = HostPages(layout, host_blocks=HOST_BLOCKS, device="cpu")
        self._executor = Executor(
            streams=streams,
            zeroing=HostZeroing(memory, groups=len(layout.groups)),
            tables=HostTableEdits(tables),
            runner=runner,
            host_tier=StreamedHostTier(
                streams=streams,
                copies=HostBlockCopies(memory, pages, groups=len(layout.groups)),
                accesses=accesses,
                lost=lost,
                block_bytes=[group.block_bytes for group in layout.groups],
                device_counts=counts,
                host_counts=[(HOST_BLOCKS + 1) * group.packing for group in layout.groups],
            ),
            accesses=accesses,
            lost=lost,
        )
        self.writer = PlanWriter(layout.groups, device_blocks=device_blocks, slots=SLOTS, host_blocks=HOST_BLOCKS)
        self._asks = damage.asks
        self._out: list[RoundInFlight] = []
        self._stores: dict[int, Any] = {}
        self.said: list[Any] = []

    def carry_out(self, story: Story) -> None:
        """Do it act by act, then land what is out."""
        for act in story(self.writer):
            for op in act.awaited if self._asks else ():
                self._stores[op].wait()
            flight = self._executor.execute(act.plan)
            self._stores.update({copy.op: copy for copy in flight.stores})
            self._out.append(flight)
            self._land(leave=act.leaves)
        self._land(leave=0)

    def _land(self, *, leave: int) -> None:
        while len(self._out) > leave:
            flight = self._out.pop(0)
            try:
                tokens = flight.tokens().tolist()
            except Exception as error:
                self.said.append(repr(error))
            else:
                self.said.append((np.frombuffer(flight.keys, dtype=np.int32).tolist(), tokens))
            self.said += [repr(copy.error) for copy in flight.loads if copy.error is not None]


def carried_out(seed: int, story: Story, damage: Damage | None = None) -> tuple[list[Any], list[Violation]]:
    """What comes of each round, and what the checker says."""
    bench = Bench(seed, damage or Damage(), device_blocks=ROOMY_BLOCKS if story is in_a_hurry else TIGHT_BLOCKS)
    bench.carry_out(story)
    return bench.said, bench.checker.violations


@pytest.mark.parametrize(
    ("story", "prompts"), [(ORDERED, OF_BEGINNINGS), (PINNED, OF_BEGINNINGS), (in_a_hurry, OF_CROWD)]
)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_left_to_the_streams(seed: int, story: Story, prompts: dict[int, list[int]]) -> None:
    """As late and as badly ordered as the streams may be: what came back from the host is continued right."""
    said, found = carried_out(seed, story)
    assert found == []
    first = {key: token for keys, tokens in reversed(said) for key, token in zip(keys, tokens, strict=True)}
    assert {key: [first[key]] for key in prompts} == {
        key: stamp_continuation(prompt, 1, options=MIX) for key, prompt in prompts.items()
    }


FENCES = [
    # who waits, for whom; in which story; the two steps without an order then
    ("write", "forward", ORDERED, ("gathering for store", "store")),
    ("write", "forward", PINNED, ("forward", "store")),
    ("forward", "write", in_a_hurry, ("store", "gathering for store")),
    ("load", "forward", in_a_hurry, ("scattering of load-back", "load-back")),
    ("forward", "load", ORDERED, ("load-back", "scattering of load-back")),
]
EDGES = [
    # what moves, to which stream, which fence goes, and the pair
    ("gathering", "load", "before", ("forward", "gathering for store")),
    ("gathering", "load", "after", ("gathering for store", "zero")),
    ("zero", "load", "before", ("gathering for store", "zero")),
    ("zero", "write", "after", ("zero", "scattering of load-back")),
    ("scattering", "load", "before", ("zero", "scattering of load-back")),
    ("scattering", "load", "before", ("forward", "scattering of load-back")),
    ("scattering", "load", "after", ("scattering of load-back", "forward")),
]
DAMAGES = [
    *((Damage(fence=(waiter, source)), story, pair) for waiter, source, story, pair in FENCES),
    *((Damage(moved=moved, way=way, left_out=left_out), ORDERED, pair) for moved, way, left_out, pair in EDGES),
    (Damage(asks=False), ORDERED, ("store", "load-back")),
    (Damage(asks=False), PINNED, ("store", "zero")),
]


@pytest.mark.parametrize(("damage", "story", "pair"), DAMAGES)
def test_every_fence_that_is_left_out_is_reported(damage: Damage, story: Story, pair: tuple[str, str]) -> None:
    """Whatever order the streams happen to choose: the report is about what could be, and names both steps."""
    for seed in SEEDS:
        _, found = carried_out(seed, story, damage)
        assert pair in {(kind(each.earlier), kind(each.later)) for each in found}


@pytest.mark.parametrize(("damage", "story"), [each[:2] for each in DAMAGES])
def test_every_fence_that_is_left_out_changes_what_is_said(damage: Damage, story: Story) -> None:
    """In some order of the streams the model finds in its blocks what it should not."""
    right, _ = carried_out(0, story)
    assert any(carried_out(seed, story, damage)[0] != right for seed in range(40))


@pytest.mark.parametrize("moved", ["gathering", "scattering"])
def test_a_copy_on_another_stream_between_two_fences_is_in_order(moved: str) -> None:
    """Nothing to report, nothing changed: it is the edges that count, not the stream."""
    right, _ = carried_out(0, ORDERED)
    for seed in SEEDS:
        assert carried_out(seed, ORDERED, Damage(moved=moved)) == (right, [])


def kind(label: str) -> str:
    """A step without its numbers: "gathering for store" of "gathering for store 7 of round 3"."""
    return " ".join(word for word in label.partition(" of round ")[0].split() if not word.isdigit())
