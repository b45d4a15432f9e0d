"""What a scheduler must be able to do to be measured."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from control_plane.messages.columns import Int32s

Clock = Callable[[], float]
SAMPLED_TOKEN = 7  # every row "samples" it: what is measured does not depend on the text


class RoundShape(NamedTuple):
    """Rows of a round that was planned."""

    decodes: int
    extends: int


class RoundTimes(NamedTuple):
    """Seconds of a round's three parts."""

    plan: float
    read: float
    advance: float


class Contender(Protocol):
    """One scheduler, loaded with one case."""

    name: str

    def submit(self, name: str, tokens: Int32s) -> None:
        """Put a prompt in line."""

    def step(self) -> RoundShape:
        """One round, not timed."""

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
