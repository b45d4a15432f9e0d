"""One engine: a scheduler, a stamp device, and between them a round loop that plans one round at a time."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from control_plane import Role, Scheduler, SchedulerConfig
from control_plane.loop.commit import Committed, StopRule, StopRules, commit
from control_plane.loop.mailbox import Mailbox
from control_plane.messages import (
    Abort,
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    ForwardFailed,
    LoadBackDone,
    NoteKind,
    RequestSpec,
    Retract,
    WriteBackDone,
)
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_events, encode_events
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.replay import replay
from control_plane.rounds.writer import TraceWriter
from control_plane.scheduler.feedback import Ended
from control_plane.testing.checkers import PlanChecker
from control_plane.testing.simulated_device import result_of
from data_plane.builder import build_device
from data_plane.forward_thread import Deliver, ForwardStepped
from data_plane.model.stamp import StampRunner
from data_plane.ops.remote import MakeRemote
from data_plane.rounds import Rounds
from data_plane.streams.sim_streams import SimStreams
from tools.simulate.calendar import Calendar
from tools.simulate.program import News, Setting
from tools.simulate.rules import check_rules
from tools.simulate.violation import Violation, require
from tools.simulate.weather import INJECTED, WITHHELD, ExposedRunner, Weather

LEAST_OF_MOST_RETRACTIONS = 20
"""Each makes the next admission secure more of the output (R7.3): so many more than that takes are all there can be."""


class Watch(Struct, frozen=True):
    """How a run is looked at, which must change nothing of it: every how many moves the books are added up.

    `scheduler` makes each engine's scheduler; whatever it makes must plan as a plain one replays.
    """

    audits_every: int = 1
    scheduler: Callable[[SchedulerConfig], Scheduler] = Scheduler


class Engine:
    """Everything that it is told and that it plans goes to a recording; every plan is checked, every move audited.

    `mishaps` is how many things went wrong that may throw out a request, here or at a peer.
    """

    def __init__(
        self,
        setting: Setting,
        role: Role,
        *,
        calendar: Calendar,
        weather: Weather,
        recording: Path,
        remote: MakeRemote | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`remote` makes what does the work for a peer."""
        config = setting.config(role)
        self.role = role
        self.recording = recording
        self._watch = watch or Watch()
        self._moves = 0
        self.scheduler = self._watch.scheduler(config)
        self.weather = weather
        self.rounds = 0
        self.mishaps = 0
        self._calendar = calendar
        self._writer = TraceWriter(recording, config)
        self._recorder = RecordingScheduler(self.scheduler, self._writer)
        self._checker = PlanChecker(self.scheduler)
        self._rules = StopRules()
        self._mailbox = Mailbox(lambda: None)
        self._ends: list[Abort | Finish] = []
        self._most_retractions: dict[int, int] = {}
        self._restarts: Counter[int] = Counter()
        self._batches_out: dict[int, ExecutionPlan] = {}
        self._given_up: set[int] = set()  # rounds that were, since a load-back of theirs did not end
        self._unended: set[int] = set()  # these load-backs
        self._held: list[bytes] = []
        self._held_alone: list[bytes] = []
        _, self._device = build_device(
            setting.device(),
            runner=ExposedRunner(StampRunner(setting.stamp()), self.weather),
            streams=partial(SimStreams, setting.order_seed),
            forward=self._make_forward,
            copies=self.weather.wrap_copies,
            remote=remote,
        )
        self._device.start(self._delivered)

    @property
    def has_mail(self) -> bool:
        """Whether something arrived that was not looked at."""
        return self._mailbox.stats().waiting > 0

    def submit(self, spec: RequestSpec, *, most_tokens: int) -> int:
        """A request enters that stops after `most_tokens`; its key. Raises RequestRejected."""
        (key,) = self._recorder.submit([spec])
        limit = self.scheduler.max_new_tokens(spec)
        self._rules.add(key, StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=min(limit, most_tokens)))
        self._most_retractions[key] = LEAST_OF_MOST_RETRACTIONS + limit // self.scheduler.config.safe_steps
        return key

    @property
    def holds_back(self) -> bool:
        """Whether something that happened is not told before nothing else moves."""
        return bool(self._held or self._held_alone)

    def tell(self, event: Event) -> None:
        """A fact from outside arrives."""
        self._mailbox.deliver(encode_events([event]))

    def hear(self, event: Event) -> None:
        """A fact arrives from between the engines, through the weather."""
        self._post("transfer", encode_events([event]))

    def let_go(self) -> None:
        """What was held back is told, in the order in which it happened."""
        letters = [*self._held_alone, *self._held]
        self._held_alone, self._held = [], []
        for letter in letters:
            self._mailbox.deliver(letter)

    def leave(self, end: Abort | Finish) -> None:
        """The client of a request wants no more of it. Told to the scheduler with whatever arrives next."""
        self._rules.drop(end.key)
        self._ends.append(end)

    def receive(self) -> tuple[list[Committed], list[Ended]]:
        """Take what arrived: what clients read of it, and the requests that the scheduler ended."""
        ends, self._ends = self._ends, []
        events, outputs = commit(self._mailbox.take(), self._rules, self.scheduler)
        if not events and not ends:
            return [], []
        ended = self._recorder.advance([*events, *ends])
        for end in ended:
            self._rules.drop(end.key)
        self._audit()
        return outputs, ended

    def plan(self) -> ExecutionPlan | None:
        """Plan one round, if there is room for one, and hand it over. None: there was nothing to do."""
        if not self.scheduler.has_room:
            return None
        plan = self._recorder.next_plan()
        self._check(plan)
        check_rules(plan, self.role)
        self._audit()
        if not plan.has_work:
            return None
        self.rounds += 1
        if plan.forward is not None:
            self._batches_out[plan.round] = plan
        weather, now = self.weather, self._calendar.now
        weather.planned(plan)
        if weather.gives_up and plan.load_backs and plan.forward is not None and plan.remote_prefill is None:
            weather.gives_up = False
            self._given_up.add(plan.round)
            self._unended.update(load.op for load in plan.load_backs)
        self._device.execute(plan)
        self._calendar.enter(now + weather.forward_rounds, self._land)
        for _ in plan.stores:
            self._calendar.enter(now + weather.store_rounds, self._land_store)
        return plan

    def close(self) -> None:
        """Finish the recording. The device has nothing left to do, or is given up."""
        self._writer.close()

    def check_books(self) -> None:
        """With the caches cleared the pools are as new (rule 8.1)."""
        require(
            self.scheduler.clear_cache(also_host=True), "books", "the cache cannot be cleared, though nothing is out"
        )
        self._add_up()
        stats = self.scheduler.stats()
        require(stats.free_blocks == stats.total_blocks, "books", f"blocks are lost: {stats}")
        require(not stats.host_used_blocks, "books", f"host blocks are lost: {stats}")

    def check_recording(self) -> None:
        """Planned again from what was told, every plan is the same to the byte (rule 8.2)."""
        replayed = replay(self.recording)
        if replayed.difference is not None:
            raise Violation("replay", replayed.difference.render())

    def _make_forward(self, rounds: Rounds, deliver: Deliver) -> ForwardStepped:
        self._forward = ForwardStepped(rounds, deliver)
        return self._forward

    def _land(self) -> None:
        """The oldest round that is out is over."""
        self._forward.land()
        self._check_device()

    def _land_store(self) -> None:
        """The oldest store that is out is over."""
        self._forward.land_store()
        self._check_device()

    def _check_device(self) -> None:
        require(not self._device.violations, "order", "\n".join(map(str, self._device.violations)))
        require(self._device.failure is None, "device", self._device.failure)

    def _delivered(self, letter: bytes) -> None:
        """The device reports."""
        match decode_events(letter):
            case [ForwardFailed(round=round_number, message=message)] if WITHHELD in message:
                self._withhold(self._batches_out.pop(round_number))
                return
            case [ExtendResult(round=round_number)] if round_number in self._given_up:
                self._withhold(self._batches_out.pop(round_number))
                return
            case [LoadBackDone(op=op), *_] if op in self._unended:
                self._held_alone.append(letter)
                return
            case [ForwardFailed(round=round_number, message=message)]:
                require(INJECTED in message, "forward", message)
                del self._batches_out[round_number]
            case [ExtendResult(round=round_number)]:
                del self._batches_out[round_number]
            case [LoadBackDone(), *_]:
                self._post("load", letter)
                return
            case [WriteBackDone()]:
                self._post("store", letter)
                return
            case _:
                self._post("transfer", letter)
                return
        self._post("forward", letter)

    def _post(self, news: News, letter: bytes) -> None:
        """The letter arrives: now, late, when nothing else moves, or twice. What rounds say stays in order."""
        weather, now = self.weather, self._calendar.now
        is_of_rounds = news in ("forward", "load")
        if news in weather.held or (is_of_rounds and self._held):
            weather.held.discard(news)
            (self._held if is_of_rounds else self._held_alone).append(letter)
            return
        late = weather.late_rounds(news)
        if late:
            self._calendar.enter(now + late, partial(self._mailbox.deliver, letter))
        else:
            self._mailbox.deliver(letter)
        if news in weather.repeated:
            weather.repeated.discard(news)
            self._calendar.enter(now + late + weather.told % 3, partial(self._mailbox.deliver, letter))

    def _withhold(self, plan: ExecutionPlan) -> None:
        """A forward did not compute: all its requests retract, and what is reported of it is for nobody."""
        assert plan.forward is not None
        for key in view(plan.forward.keys).tolist():
            self._tell_in_order(Retract(key))
        self._tell_in_order(result_of(plan))

    def _tell_in_order(self, event: Event) -> None:
        letter = encode_events([event])
        if self._held:
            self._held.append(letter)
        else:
            self._mailbox.deliver(letter)

    def _check(self, plan: ExecutionPlan) -> None:
        try:
            self._checker.check(plan)
        except AssertionError as error:
            raise Violation("plan", str(error)) from error
        for note in plan.notes:
            if note.kind is NoteKind.RESTARTED:
                self._restarts[note.key] += 1
                times = self._restarts[note.key]
                require(times <= 1 + self.mishaps, "livelock", f"request {note.key} was restarted {times} times")
            if note.kind is NoteKind.RETRACTED:
                most = self._most_retractions[note.key] + self.mishaps
                message = f"request {note.key} was retracted {note.numbers[2]} times"
                require(note.numbers[2] <= most, "livelock", message)

    def _audit(self) -> None:
        self._moves += 1
        if self._moves % self._watch.audits_every == 0:
            self._add_up()

    def _add_up(self) -> None:
        problems = self.scheduler.audit()
        require(not problems, "audit", "; ".join(problems))
