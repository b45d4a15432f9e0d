"""The states of a request, as frozen values. Those with `resources` hold pages."""

from msgspec import Struct

from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.tokens import Window
from control_plane.messages import FinishReason


class Submitted(Struct, frozen=True):
    """Waiting for its first admission."""


class Prefilling(Struct, frozen=True):
    """A chunk is scheduled and more of the prompt is left."""

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class PrefillDone(Struct, frozen=True):
    """The chunk that reaches the end of the prompt is scheduled."""

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class Decoding(Struct, frozen=True):
    """Decode steps are scheduled one after the other; they change counters and no state."""

    resources: ForwardResources


class Retracted(Struct, frozen=True):
    """Thrown out with its tokens kept; prefills again. Without a snapshot it waits like a new prompt (R7.1)."""

    epoch: int
    resumes_generation: bool


class Finished(Struct, frozen=True):
    """Over. Holds nothing."""

    reason: FinishReason


State = Submitted | Prefilling | PrefillDone | Decoding | Retracted | Finished


def resources_of(state: State) -> ForwardResources | None:
    """The bundle of a page-holding state."""
    return getattr(state, "resources", None)
