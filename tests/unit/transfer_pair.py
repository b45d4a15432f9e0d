"""An engine that prefills and one that decodes, with stamp devices and a rendezvous, driven without threads."""

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from random import Random
from typing import Any

from msgspec import Struct

from control_plane import Role, Scheduler, SchedulerConfig
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.messages import Abort, Bootstrapped, Event, ExecutionPlan, RequestSpec, Sampling
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_events
from control_plane.testing.checkers import PlanChecker
from data_plane.assembly import WrapCopies
from data_plane.builder import build_device
from data_plane.forward_thread import Deliver, ForwardStepped, ForwardThread
from data_plane.model.base import ModelRunner
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.remote import DeviceParts, MakeRemote
from data_plane.options import DeviceOptions
from data_plane.rounds import Rounds
from data_plane.streams.host_streams import HostStreams
from data_plane.streams.sim_streams import SimStreams
from data_plane.transfer.ends import WrapPages
from data_plane.transfer.rendezvous import Rendezvous, Side
from tokenspeed.assembly import cache_groups

STOP_TOKEN = 0
CONTEXT = 100
PAGE = 4
MIXES = {
    "full": StampOptions(),
    "full+sliding": StampOptions(
        group_kinds=("full", "sliding"), block_granularities=(4, 2), packings=(1, 1), windows=(0, 6)
    ),
    "full+state": StampOptions(group_kinds=("full", "state"), block_granularities=(2, 4), packings=(2, 1)),
    "full+replayable": StampOptions(
        group_kinds=("full", "sliding"),
        block_granularities=(4, 4),
        packings=(1, 1),
        windows=(0, 6),
        replayables=(False, True),
    ),
    "all but replayable": StampOptions(
        group_kinds=("full", "sliding", "state", "sliding"),
        block_granularities=(4, 4, 2, 2),
        packings=(1, 2, 1, 1),
        windows=(0, 9, 0, 1),
    ),
}


class Request(Struct):
    """What came of one request where a client reads it: on the decoding side."""

    prompt: list[int]
    limit_tokens: int
    keys: dict[Side, int]
    tokens: list[int]
    reasons: dict[Side, str]
    messages: dict[Side, str]


class Engine:
    """One side. Its rounds and stores are out until they are landed, unless its device has threads of its own."""

    def __init__(
        self,
        side: Side,
        remote: MakeRemote,
        options: StampOptions,
        deliver: Deliver,
        *,
        pool: int,
        host: int = 0,
        seed: int = 0,
        runner: ModelRunner | None = None,
        copies: WrapCopies = lambda inner: inner,
        threads: bool = False,
        **config: Any,
    ) -> None:
        self.side = side
        self.rules = StopRules()
        self.plans: list[ExecutionPlan] = []
        self.events: list[Event] = []
        specs, self.device = build_device(
            DeviceOptions(
                model="stamp",
                prefix_granularity=PAGE,
                max_batch_size=4,
                max_context_tokens=CONTEXT,
                device_blocks=pool,
                host_blocks=host,
                check_order=True,
            ),
            runner=runner or StampRunner(options, block_granularity=PAGE),
            streams=HostStreams if threads else partial(SimStreams, seed),
            forward=ForwardThread if threads else self._make_forward,
            copies=copies,
            remote=remote,
        )
        groups = cache_groups(specs.groups)
        defaults = {"max_scheduled_tokens": 24, "max_batch_size": 4, "max_context_tokens": CONTEXT}
        self.scheduler = Scheduler(
            SchedulerConfig(
                **{**defaults, **config},
                prefix_granularity=PAGE,
                device_blocks=pool,
                host_blocks=host,
                groups=groups,
                role=Role(side.value),
            )
        )
        self._checker = PlanChecker(self.scheduler)
        self.device.start(deliver)

    def _make_forward(self, rounds: Rounds, deliver: Deliver) -> ForwardStepped:
        self.forward = ForwardStepped(rounds, deliver)
        return self.forward

    @property
    def is_waiting(self) -> bool:
        """Whether something was handed to the device that has not ended."""
        return self.device.stats().rounds_in_flight > 0 or self.forward.stores_out > 0

    def plan(self) -> bool:
        """One round, if there is room for it; whether there was anything to do."""
        if not self.scheduler.has_room:
            return False
        plan = self.scheduler.next_plan()
        self._checker.check(plan)
        assert self.scheduler.audit() == []
        if plan.has_work:
            self.plans.append(plan)
            self.device.execute(plan)
        return plan.has_work


class TransferPair:
    """Both engines. Requests are numbered as they are submitted; keys differ between the sides."""

    def __init__(
        self,
        options: StampOptions,
        *,
        seed: int = 0,
        rendezvous: Rendezvous | None = None,
        wrap: WrapPages = lambda inner: inner,
        alter: Callable[[Side, DeviceParts], DeviceParts] = lambda side, parts: parts,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
    ) -> None:
        self.options = options
        self.rendezvous = rendezvous or Rendezvous(wrap=wrap)
        self.letters: SimpleQueue[tuple[Side, bytes]] = SimpleQueue()
        self.requests: list[Request] = []
        self._random = Random(seed)
        sides = {Side.PREFILL: prefill or {}, Side.DECODE: decode or {}}
        ends = {Side.PREFILL: self.rendezvous.prefill_end, Side.DECODE: self.rendezvous.decode_end}
        self.engines = {
            side: Engine(
                side,
                lambda parts, side=side: ends[side](alter(side, parts)),
                options,
                lambda letter, side=side: self.letters.put((side, letter)),
                seed=seed + 100 * at,
                **{"pool": 40, **more},
            )
            for at, (side, more) in enumerate(sides.items())
        }
        self.prefill, self.decode = self.engines.values()
        for _ in range(seed % 3):  # so that the keys of one request differ
            self._unpaired()

    def _unpaired(self) -> None:
        (key,) = self.prefill.scheduler.submit([RequestSpec("nobody's", pack([1]))])
        self.advance(Side.PREFILL, [Abort(key)])

    def submit(self, prompt: Sequence[int], new_tokens: int, *, seed: int = 0) -> Request:
        """A request enters on both sides, and may be scheduled there."""
        sampling = Sampling(temperature=1.0, seed=seed) if seed else Sampling()
        spec = RequestSpec(
            f"r{len(self.requests)}", pack(prompt), new_tokens, stop_token_ids=(STOP_TOKEN,), sampling=sampling
        )
        keys = {}
        for side, engine in self.engines.items():
            (keys[side],) = engine.scheduler.submit([spec])
            limit = engine.scheduler.max_new_tokens(spec)
            engine.rules.add(keys[side], StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=limit))
        request = Request(list(prompt), new_tokens, keys, [], {}, {})
        self.requests.append(request)
        self.rendezvous.pair(prefill_key=keys[Side.PREFILL], decode_key=keys[Side.DECODE])
        for side, key in keys.items():
            self.advance(side, [Bootstrapped(key)])
        return request

    def abort(self, side: Side, request: Request, *, says_so: bool = True) -> None:
        """The client leaves; `says_so`: whether the engine tells the rendezvous."""
        key = request.keys[side]
        self.engines[side].rules.drop(key)
        request.reasons.setdefault(side, "abort")
        self.advance(side, [Abort(key)])
        if says_so:
            self.rendezvous.give_up(side, key, "the client left")

    def advance(self, side: Side, arrived: list[Event]) -> None:
        """Facts reach the scheduler of a side."""
        engine = self.engines[side]
        engine.events += arrived
        events, outputs = commit(arrived, engine.rules, engine.scheduler)
        ended = engine.scheduler.advance(events)
        by_key = {request.keys[side]: request for request in self.requests}
        for output in outputs:
            request = by_key[output.key]
            if side is Side.DECODE:
                request.tokens += output.tokens
            if output.reason is not None and side is Side.DECODE:
                request.reasons[side] = output.reason.value
        for end in ended:
            engine.rules.drop(end.key)
            by_key[end.key].reasons.setdefault(side, end.reason.value)
            by_key[end.key].messages.setdefault(side, end.message)
            self.rendezvous.give_up(side, end.key, end.message)
        assert engine.scheduler.audit() == []

    def receive(self) -> None:
        """Whatever letters there are."""
        while not self.letters.empty():
            self.receive_one()

    def receive_one(self, timeout_s: float = 60.0) -> None:
        """The next letter, which comes in time or never."""
        side, letter = self.letters.get(timeout=timeout_s)
        self.advance(side, decode_events(letter))

    def turn(self, side: Side) -> bool:
        """One round of a side, landed at once; whether it had work."""
        engine = self.engines[side]
        has_work = engine.plan()
        while engine.forward.land():
            pass
        while engine.forward.land_store():
            pass
        self.receive()
        return has_work

    def copy_pages(self, count: int, request: Request | None = None) -> int:
        """At most so many pages of a request, or of any; how many there were."""
        key = request.keys[Side.DECODE] if request is not None else None
        copied = 0
        while copied < count and self.rendezvous.step(key):
            copied += 1
        self.receive()
        return copied

    def until_both_came(self, request: Request) -> None:
        """Rounds of both sides until a request can be transferred."""
        for _ in range(30):
            if request.keys[Side.DECODE] in self.rendezvous.running:
                return
            self.turn(Side.PREFILL)
            self.turn(Side.DECODE)
        raise AssertionError(f"no transfer of {request} begins")

    def run(self, rounds: int = 2000) -> None:
        """Until nobody is left, in an order that the seed gives; pages, rounds and stores take their time."""
        for _ in range(rounds):
            if self._is_idle:
                return
            if not self._anything():
                stats = [engine.scheduler.stats() for engine in self.engines.values()]
                assert self._is_idle, f"nothing moves: {stats}, {self.rendezvous.running}"
        raise AssertionError("no end in sight")

    @property
    def _is_idle(self) -> bool:
        return self.letters.empty() and not any(
            engine.scheduler.requests or engine.is_waiting or engine.scheduler.transfers
            for engine in self.engines.values()
        )

    def move(self, times: int) -> None:
        """So many things happen, if there is anything to happen."""
        for _ in range(times):
            self._anything()

    def _anything(self) -> bool:
        hows = ("plan", "plan", "land", "store")
        moves = [self._page, *(partial(self._move, each, how) for each in self.engines.values() for how in hows)]
        self._random.shuffle(moves)
        moved = any(move() for move in moves)
        self.receive()
        return moved

    def _page(self) -> bool:
        running = self.rendezvous.running
        return bool(running) and self.rendezvous.step(self._random.choice(running))

    def _move(self, engine: Engine, how: str) -> bool:
        match how:
            case "plan":
                return engine.plan()
            case "land":
                return engine.forward.land()
            case _:
                return engine.forward.land_store()

    def check(self) -> None:
        """Every request said what it says alone, or its beginning if it left; no order, page or pairing is wanting."""
        for request in self.requests:
            alone = stamp_continuation(
                request.prompt, request.limit_tokens, options=self.options, stop_token_ids=(STOP_TOKEN,)
            )
            if request.reasons.get(Side.DECODE) in ("abort", "error"):
                alone = alone[: len(request.tokens)]
            assert request.tokens == alone
        assert self.rendezvous.paired == 0
        for engine in self.engines.values():
            assert [str(each) for each in engine.device.violations] == []
            assert engine.device.failure is None
            assert engine.scheduler.clear_cache(also_host=True)
            assert engine.scheduler.stats().free_blocks == engine.scheduler.stats().total_blocks
            engine.device.close()
