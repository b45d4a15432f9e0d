"""What a scheduler must be able to do to be measured."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from control_plane.messages.columns import Int32s

Clock = Callable[[], float]
SAMPLED_TOKEN = 7  # every row "samples" it: what is measured does not depend on the text


class RoundTimes(NamedTuple):
    """Seconds of a round's three parts."""

    plan: float
    read: float
    advance: float


class ServedRound(NamedTuple):
    """A round as it came, of any kind: its rows, the prompt tokens it computed, who is over, and its seconds."""

    decodes: int
    extends: int
    computed_tokens: int
    finished: int
    seconds: float


class Contender(Protocol):
    """One scheduler, made for one `SchedulerConfig`."""

    name: str

    def submit(self, name: str, tokens: Int32s, *, declared: int | None, output_tokens: int) -> float:
        """Put a prompt in line that will make so many tokens. Returns the seconds that the scheduler took."""

    def serve_round(self, clock: Clock) -> ServedRound:
        """One round of any kind. Raises RuntimeError when nothing was planned and nothing is awaited."""

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One round in which everybody decodes and nobody ends, part by part."""
