"""Runs a program: clients, engines, the weather and virtual time. Raises at the first thing that must not be."""

from collections.abc import Iterable
from pathlib import Path

from control_plane import RequestRejected, Role
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Event,
    Finish,
    RemotePrefillDone,
    Retract,
    TransferFailed,
    TransferSucceeded,
)
from control_plane.messages.columns import pack, view
from control_plane.scheduler.feedback import Ended
from tools.simulate.calendar import Calendar
from tools.simulate.engine import Engine, Watch
from tools.simulate.link import Link
from tools.simulate.program import (
    Drop,
    Fail,
    GiveUp,
    Hold,
    Late,
    Latency,
    Leave,
    Repeat,
    Run,
    Setting,
    Step,
    Submit,
    Tell,
    Withhold,
)
from tools.simulate.story import Story, rounds_to_end, spec_of
from tools.simulate.violation import require
from tools.simulate.weather import Weather


class World:
    """One run. Each engine leaves a recording in `folder`. `taken` are the steps so far.

    A round of the world is one in which at least one engine planned something.
    """

    def __init__(self, setting: Setting, folder: Path, *, watch: Watch | None = None) -> None:
        self.rounds = 0
        self.refused = 0
        self.stories: list[Story] = []
        self.taken: list[Step] = []
        self.calendar = Calendar()
        weathers = {role: Weather() for role in setting.by_role()}
        self.link: Link | None = None
        if setting.peer is not None:
            self.link = Link(self.calendar, weathers[Role.DECODE], tell=self._tell)
        self.engines = {
            role: Engine(
                each,
                role,
                calendar=self.calendar,
                weather=weathers[role],
                recording=folder / f"{role}.rounds",
                remote=self.link.remote(role) if self.link is not None else None,
                watch=watch,
            )
            for role, each in setting.by_role().items()
        }
        self._read = next(reversed(self.engines.values()))
        self._stamp = setting.stamp()
        self._by_key: dict[tuple[Role, int], Story] = {}
        self._is_lost = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing happens until somebody submits."""
        return not any(engine.scheduler.requests for engine in self.engines.values()) and not len(self.calendar)

    def run(self, steps: Iterable[Step]) -> None:
        """The steps; then until nobody is left; then what holds of it all.

        Raises Violation, or whatever one of the planes raises.
        """
        try:
            for step in steps:
                self.taken.append(step)
                self._take(step)
            self._finish()
        finally:
            for engine in self.engines.values():
                engine.close()
        for engine in self.engines.values():
            engine.check_books()
            engine.check_recording()

    def _take(self, step: Step) -> None:
        match step:
            case Submit():
                self._submit(step)
            case Leave(index=index, is_content=is_content):
                if index < len(self.stories):
                    self._leave(self.stories[index], is_content=is_content)
            case Drop(index=index):
                if index < len(self.stories):
                    self._drop(self.stories[index])
            case Run(rounds=rounds):
                for _ in range(rounds):
                    if not self._round():
                        break
            case Latency(forward=forward, store=store, transfer=transfer, spread=spread, peer=peer):
                weather = self._engine(peer=peer).weather
                weather.forward_rounds, weather.store_rounds, weather.transfer_rounds = forward, store, transfer
                weather.spread_rounds = spread
            case Fail(what=what, is_late=is_late, peer=peer):
                self._expect_mishap()
                self._engine(peer=peer).weather.expect(what, is_late=is_late)
            case Withhold(peer=peer):
                self._expect_mishap()
                self._engine(peer=peer).weather.expect("withheld")
            case GiveUp(peer=peer):
                self._expect_mishap()
                self._engine(peer=peer).weather.gives_up = True
            case Repeat(news=news, peer=peer):
                self._engine(peer=peer).weather.repeated.add(news)
            case Hold(news=news, is_lost=is_lost, peer=peer):
                self._engine(peer=peer).weather.held.add(news)
                self._is_lost = self._is_lost or is_lost
            case Tell(index=index, what=what, peer=peer):
                if index < len(self.stories) and self.stories[index].reason is not None:
                    engine = self._engine(peer=peer)
                    key = self.stories[index].keys[engine.role]
                    if key not in engine.scheduler.requests:
                        engine.tell(_late(what, key))

    def _tell(self, role: Role, event: Event) -> None:
        self.engines[role].hear(event)

    def _engine(self, *, peer: bool) -> Engine:
        """The engine that clients read from; or its peer, if it has one."""
        return next(iter(self.engines.values())) if peer else self._read

    def _expect_mishap(self) -> None:
        for engine in self.engines.values():
            engine.mishaps += 1

    def _submit(self, step: Submit) -> None:
        spec = spec_of(step, len(self.stories) + self.refused)
        try:
            for engine in self.engines.values():
                engine.scheduler.check(spec)
        except RequestRejected:
            self.refused += 1
            return
        most_tokens = self._read.scheduler.max_new_tokens(spec)
        if step.stops_after is not None:
            most_tokens = min(most_tokens, step.stops_after)
        keys = {role: engine.submit(spec, most_tokens=most_tokens) for role, engine in self.engines.items()}
        key = keys[self._read.role]
        story = Story(
            name=spec.id,
            prompt=view(spec.tokens).tolist(),
            limit_tokens=most_tokens,
            sampling=spec.sampling,
            request=self._read.scheduler.requests[key],
            keys=keys,
            tokens=[],
            submitted_round=self.rounds,
        )
        self.stories.append(story)
        self._by_key |= dict.fromkeys(keys.items(), story)
        if self.link is not None:
            self.link.introduce(keys)

    def _leave(self, story: Story, *, is_content: bool) -> None:
        """It goes. Nobody can have what it wanted before it read anything."""
        key = story.request.key
        is_content = is_content and bool(story.tokens)
        self._read.leave(Finish(key) if is_content else Abort(key))
        self._end(story, "content" if is_content else "abort")

    def _drop(self, story: Story) -> None:
        """The engine that prefills, if there is one beside the one that is read, knows nothing more of it."""
        if self.link is not None:
            key = story.keys[Role.PREFILL]
            self._expect_mishap()
            self.engines[Role.PREFILL].leave(Abort(key))
            self.link.give_up(Role.PREFILL, key, "it was dropped")

    def _round(self) -> bool:
        """The next round that does something; time passes until there is one. False: nothing is to be done."""
        self.calendar.pass_to(self.calendar.now + 1)
        while True:
            self._receive()
            if self._plan():
                self.rounds += 1
                return True
            if any(engine.has_mail for engine in self.engines.values()):
                continue
            if not len(self.calendar) and self._let_go():
                continue
            if not len(self.calendar):
                explain = self._read.scheduler.explain
                waiting = [f"{story.name}: {explain(story.name)}" for story in self._live()]
                require(not waiting, "stall", f"nothing moves: {', '.join(waiting)}")
                return False
            self.calendar.pass_to_next()

    def _let_go(self) -> bool:
        """Nothing else moves: what is held back comes. If it was lost, every client gives up before; False: nothing is.

        A client that gives up is rid of its request at once, whatever is out against its pages (R2.4).
        """
        holding = [engine for engine in self.engines.values() if engine.holds_back]
        if holding and self._is_lost:
            self._is_lost = False
            for story in self._live():
                self._leave(story, is_content=False)
            self._receive()
            left = sorted(self._read.scheduler.requests)
            require(not left, "progress", f"the clients of requests {left} are gone, and they are not")
        for engine in holding:
            engine.let_go()
        return bool(holding)

    def _plan(self) -> bool:
        """Each engine plans at most one round; whether one did."""
        plans = {role: plan for role, engine in self.engines.items() if (plan := engine.plan()) is not None}
        if self.link is not None and Role.DECODE in plans:
            self.link.admitted(plans[Role.DECODE])
        return bool(plans)

    def _receive(self) -> None:
        """Each engine takes what arrived. What the peer says of a request is read where it is decoded."""
        for role, engine in self.engines.items():
            outputs, ended = engine.receive()
            for end in ended:
                self._ended(role, end)
            if engine is not self._read:
                continue
            for output in outputs:
                story = self._by_key[role, output.key]
                story.tokens += output.tokens
                if output.reason is not None:
                    self._end(story, output.reason.value)

    def _ended(self, role: Role, end: Ended) -> None:
        """An engine gave a request up by itself. The peer's end of it is for the link alone."""
        if self._read.role is role:
            self._end(self._by_key[role, end.key], end.reason.value)
        elif self.link is not None:
            self._expect_mishap()
            self.link.give_up(role, end.key, end.message)

    def _end(self, story: Story, reason: str) -> None:
        if story.reason is not None:
            return
        story.reason, story.ended_round = reason, self.rounds
        if self.link is not None:
            self.link.give_up(self._read.role, story.request.key, reason)
        story.check(self._stamp)

    def _live(self) -> list[Story]:
        return [story for story in self.stories if story.reason is None]

    def _finish(self) -> None:
        """Every request ends within a bounded number of rounds (rule 8.3), and every copy and transfer."""
        bound = rounds_to_end(self.stories)
        for _ in range(bound):
            if not self._round():
                break
        live = ", ".join(story.name for story in self._live())
        require(not live, "progress", f"{live} did not end within {bound} rounds")
        left = [role.value for role, engine in self.engines.items() if engine.scheduler.requests]
        require(not left, "progress", f"requests are left on {left} whose clients are gone")
        paired = self.link.rendezvous.paired if self.link is not None else 0
        require(not paired, "progress", f"{paired} requests are paired whose transfers never end")


def _late(what: Late, key: int) -> Event:
    """Something of a request, for an engine on which it is over."""
    match what:
        case "abort":
            return Abort(key)
        case "finish":
            return Finish(key)
        case "retract":
            return Retract(key)
        case "bootstrapped":
            return Bootstrapped(key)
        case "landed":
            return RemotePrefillDone(key, 0, pack([7]))
        case "sent":
            return TransferSucceeded(key, 0)
        case "failed":
            return TransferFailed(key, 0, "late")
