"""One random program on both schedulers: prompts arrive, rounds land, copies and transfers end, requests leave."""

import random
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from control_plane import SchedulerConfig
from control_plane.config import Role
from tools.compare_reference.peer_ours import Ours
from tools.compare_reference.peer_reference import Reference
from tools.compare_reference.round_view import RoundView

ROWS = ("mixed-hit",)
"""Rows of docs/differences.md at which the comparison of a program ends."""


class Weather(Struct, frozen=True):
    """How a program goes, besides its configuration. Spans are rounds, `abort` and `fail` probabilities."""

    requests: int
    rounds: int
    prompt_tokens: int
    shared_tokens: int
    output_tokens: int
    declares: float  # how many say how much they will say
    arrival: float = 0.3
    burst: int = 1
    abort: float = 0.0
    fail: float = 0.0
    store_delay: int = 0
    peer_delay: int = 0


class Difference(Struct, frozen=True):
    """The first round that is not the same on both sides, and the row of docs/differences.md that tells why, if any."""

    round: int
    ours: RoundView
    theirs: RoundView
    row: str | None

    @property
    def fields(self) -> tuple[str, ...]:
        """What of the round differs."""
        return tuple(
            name for name in RoundView.__struct_fields__ if getattr(self.ours, name) != getattr(self.theirs, name)
        )


class Program:
    """Both sides of one seed, and what is going on."""

    def __init__(self, draw: random.Random, config: SchedulerConfig, weather: Weather) -> None:
        self.draw, self.config, self.weather = draw, config, weather
        self.ours, self.theirs = Ours(config), Reference(config)
        self.sides = (self.ours, self.theirs)
        self.live: dict[str, int] = {}  # tokens still to come
        self.number = 0
        self.away: set[str] = set()  # a peer is at their pages
        self.out: list[tuple[int, RoundView]] = []
        self.later: list[tuple[int, int, Callable[[], object]]] = []
        self.submitted = 0
        self.difference: Difference | None = None
        self.history: list[tuple[RoundView, RoundView]] = []

    def run(self) -> None:
        """Until nobody is left, or the rounds are over."""
        while self.number < self.weather.rounds:
            self._arrive()
            self._fall_due()
            while sum(view.has_forward for _, view in self.out) > self.config.overlap_depth:
                self._land()
            view = self._plan()
            if view is None:
                return
            if view.has_work:
                self.out.append((self.number, view))
            elif self.out:
                self._land()
            elif not self.live and self.submitted == self.weather.requests:
                return
            while self.out and not self.out[0][1].has_forward:
                self._land()

    def _arrive(self) -> None:
        if self.submitted < self.weather.requests and self.draw.random() < self.weather.arrival:
            for _ in range(self.draw.randint(1, self.weather.burst)):
                if self.submitted < self.weather.requests:
                    self._submit(f"r{self.submitted:03d}")

    def _submit(self, name: str) -> None:
        draw, weather = self.draw, self.weather
        self.submitted += 1
        base = draw.randint(0, 1)
        shared = [base * 1000 + position for position in range(draw.randint(0, weather.shared_tokens))]
        prompt = [*shared, *(draw.randint(5000, 6000) for _ in range(draw.randint(1, weather.prompt_tokens)))]
        output = draw.randint(1, weather.output_tokens)
        # More than it will say: the reference overlaps steps beyond the last token, ours never does (D1).
        declared = output + 4 + 2 * self.config.decode_width if draw.random() < weather.declares else None
        for side in self.sides:
            side.submit(name, prompt, declared)
        self.live[name] = output
        if self.config.role is not Role.FUSED:
            self._in(weather.peer_delay, lambda: self._boot(name))

    def _plan(self) -> RoundView | None:
        """The next round of both; None where they part."""
        self.number += 1
        ours = self.ours.plan(self.number)
        theirs = self.theirs.plan(self.number)
        self.history.append((ours, theirs))
        if any(theirs.given_away):
            ours, theirs = ours.by_one_guard(), theirs.by_one_guard()
        self.history[-1] = ours, theirs
        if ours != theirs:
            row = ROWS[0] if self.ours.has_mixed_hit else None
            self.difference = Difference(self.number, ours, theirs, row)
            return None
        self.away |= {*ours.remote_decodes, *(name for name, _, _ in ours.remote_prefills)}
        for name, _, _ in ours.remote_prefills:
            self._in(self.weather.peer_delay + 1, partial(self._end_remote_prefill, name))
        for name in ours.remote_decodes:
            self._in(self.weather.peer_delay + 1, partial(self._end_remote_decode, name))
        return ours

    def _land(self) -> None:
        number, view = self.out.pop(0)
        accepted = {name: self.draw.randint(1, self.config.decode_width) for name in view.decodes}
        sampled = {**accepted, **{row.name: 1 for row in view.extends if row.samples}}
        finish = []
        if self.config.role is not Role.PREFILL:
            finish = [name for name, count in sampled.items() if self._said(name, count)]
        staying = {*finish, *self.away}
        abort = [name for name in self.live if name not in staying and self.draw.random() < self.weather.abort]
        for name in [*finish, *abort]:
            del self.live[name]
        for side in self.sides:
            side.land(number, accepted, finish, abort)
        self._in(self.weather.store_delay, lambda: [side.end_stores(number) for side in self.sides])

    def _said(self, name: str, count: int = 1) -> bool:
        """Tokens of a request came; whether the last was among them."""
        if name not in self.live:
            return False
        self.live[name] -= count
        return self.live[name] <= 0

    def _boot(self, name: str) -> None:
        if name not in self.live:
            return
        for side in self.sides:
            side.boot(name)

    def _end_remote_prefill(self, name: str) -> None:
        self.away.remove(name)
        if self.draw.random() < self.weather.fail:
            return self._fail(name)
        finishes = self._said(name)
        if finishes:
            del self.live[name]
        for side in self.sides:
            side.end_remote_prefill(name, finishes=finishes)

    def _end_remote_decode(self, name: str) -> None:
        self.away.remove(name)
        if self.draw.random() < self.weather.fail:
            return self._fail(name)
        self.live.pop(name)
        for side in self.sides:
            side.end_remote_decode(name)

    def _fail(self, name: str) -> None:
        self.live.pop(name)
        for side in self.sides:
            side.fail_transfer(name)

    def _in(self, most: int, action: Callable[[], object]) -> None:
        """Within so many rounds; 0: now."""
        if not most:
            action()
            return
        self.later.append((self.number + self.draw.randint(1, most), len(self.later), action))

    def _fall_due(self) -> None:
        due = [entry for entry in self.later if entry[0] <= self.number]
        self.later = [entry for entry in self.later if entry[0] > self.number]
        for _, _, action in sorted(due, key=lambda entry: entry[:2]):
            action()
