"""What a recording says of one request: its phases, and why each began and went on."""

from enum import StrEnum
from itertools import takewhile

from msgspec import Struct, field

from control_plane.rounds.frames import NO_TIME

FEW = 3


class PhaseKind(StrEnum):
    """Where a request can be."""

    AWAITS_PEER = "waiting for peer"
    QUEUED = "queued"
    LOADING = "loading"
    PREFILLING = "prefilling"
    PEER_PREFILLS = "prefilled by peer"
    DECODING = "decoding"
    RETRACTED = "retracted"
    AWAITS_ACK = "waiting for ack"


WITHOUT_PAGES = (PhaseKind.AWAITS_PEER, PhaseKind.QUEUED, PhaseKind.RETRACTED, PhaseKind.AWAITS_ACK)


class Cause(Struct, frozen=True):
    """Why something is so, in words. `about` stays the same while only the numbers change."""

    text: str
    about: str


class Reason(Struct, frozen=True):
    """A cause, and when it was first told."""

    round: int
    time_us: int
    text: str


class Phase(Struct):
    """A stretch of a request's life. `begin_round` is the first round of it, `end_round` the last one planned in it.

    `scheduled` counts the rounds that the request had a row in. Times are of the recording machine; NO_TIME: unknown.
    """

    kind: PhaseKind
    begin_round: int
    begin_us: int
    end_round: int
    end_us: int = NO_TIME
    scheduled: int = 0
    reasons: list[Reason] = field(default_factory=list)
    standing: tuple[str, ...] = ()  # what the causes told last were about

    @property
    def duration_us(self) -> int:
        """How long it lasted."""
        return self.end_us - self.begin_us if NO_TIME not in (self.begin_us, self.end_us) else NO_TIME


class Life(Struct):
    """One request from its submission to its end, or to the end of the recording (`end` "").

    `cached_tokens` of the prompt came from the cache at the first admission (J1), `cached_host_tokens` of them from the
    host. What later admissions found, and what they computed again, is counted apart.
    """

    key: int
    name: str
    prompt_tokens: int
    max_new_tokens: int | None
    submitted_us: int
    submitted_round: int
    phases: list[Phase] = field(default_factory=list)
    admitted_us: int = NO_TIME
    first_token_us: int = NO_TIME
    last_token_us: int = NO_TIME
    ended_us: int = NO_TIME
    output_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    found_again_tokens: int = 0
    computed_again_tokens: int = 0
    retractions: int = 0
    is_admitted: bool = False
    end: str = ""

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.phases[-1]

    @property
    def is_waiting(self) -> bool:
        """Whether it holds no pages."""
        return self.phase.kind in WITHOUT_PAGES and not self.end

    @property
    def waiting_phases(self) -> list[Phase]:
        """The phases without pages right before the present one."""
        before = takewhile(lambda phase: phase.kind in WITHOUT_PAGES, reversed(self.phases[:-1]))
        return list(before)

    def enter(self, kind: PhaseKind, round_number: int, time_us: int) -> None:
        """A new phase begins with this round, or goes on if it is the same one."""
        if self.phases:
            if self.phase.kind is kind:
                return
            self.leave(round_number - 1, time_us)
        self.phases.append(Phase(kind, round_number, time_us, round_number))

    def leave(self, round_number: int, time_us: int) -> None:
        """The present phase had this last round."""
        self.phase.end_round = max(round_number, self.phase.begin_round - 1)
        self.phase.end_us = time_us

    def because(self, round_number: int, time_us: int, *causes: Cause) -> None:
        """Keep what is told now, but for what goes on from the last time."""
        said = self.phase.standing
        self.phase.reasons += [Reason(round_number, time_us, cause.text) for cause in causes if cause.about not in said]
        self.phase.standing = tuple(cause.about for cause in causes)


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:FEW])
    more = len(names) - FEW
    return f"{shown} and {more} more" if more > 0 else shown
