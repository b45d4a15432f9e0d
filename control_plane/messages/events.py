"""Facts reported from outside that move requests: tagged records, one union, matched by internal key.

Late and duplicate events are ordinary: a fact about a request that ended, or about an earlier attempt, is dropped.
"""

from enum import StrEnum

from msgspec import Struct


class FinishReason(StrEnum):
    """Why a request ended. The first two are what an OpenAI client reads."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ExtendResult(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A round's forward landed. Columns of int32, one entry a row in the plan's order.

    `counts` says how many of `tokens` are each row's; an intermediate chunk has none: the arrival is the point.
    """

    round: int
    keys: bytes
    counts: bytes
    tokens: bytes


class ForwardFailed(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A round's forward raised. Its requests end with an error; nothing that it should have computed is kept."""

    round: int
    message: str


class Finish(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A stop rule was met: the request's work is done."""

    key: int
    reason: FinishReason = FinishReason.STOP


class Abort(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The client gave up. Legal in every state; after the first, a no-op."""

    key: int


class Retract(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The device side could not fill what was admitted for this request; it prefills again."""

    key: int


Event = ExtendResult | ForwardFailed | Finish | Abort | Retract
