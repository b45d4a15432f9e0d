"""The states of a request, as frozen values. Those with `resources` hold pages."""

from msgspec import Struct

from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.tokens import Window
from control_plane.messages import FinishReason


class Bootstrapping(Struct, frozen=True):
    """Waiting until the peer that will do the other half of the work knows of it. Roles P and D only."""


class Submitted(Struct, frozen=True):
    """Waiting for its first admission."""


class RemotePrefilling(Struct, frozen=True):
    """The peer computes the prompt and writes its pages here. Role D only; nobody else may touch them meanwhile."""

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class Prefilling(Struct, frozen=True):
    """A chunk is scheduled and more of the prompt is left."""

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class PrefillDone(Struct, frozen=True):
    """The chunk that reaches the end of the prompt is scheduled, or the peer's pages landed.

    On role P this lasts until the transfer of the pages is acknowledged.
    """

    resources: ForwardResources
    window: Window
    reserve_tokens: int


class Decoding(Struct, frozen=True):
    """Decode steps are scheduled one after the other; they change counters and no state."""

    resources: ForwardResources


class Retracted(Struct, frozen=True):
    """Thrown out with its tokens kept; prefills again.

    A recoverable one comes back before new prompts, in the order of `resumes_generation` and `epoch`; one whose pages
    are nowhere waits like a new prompt (R7.1).
    """

    epoch: int
    resumes_generation: bool
    is_recoverable: bool


class Finished(Struct, frozen=True):
    """Over. Holds nothing."""

    reason: FinishReason


State = Bootstrapping | Submitted | RemotePrefilling | Prefilling | PrefillDone | Decoding | Retracted | Finished


def resources_of(state: State) -> ForwardResources | None:
    """The bundle of a page-holding state."""
    return getattr(state, "resources", None)
