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
    TRANSFERRED = "transferred"  # on a prefilling engine: the peer goes on from here


class ExtendResult(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A round's forward landed. Columns of int32, one entry a row in the plan's order.

    `counts` says how many of `tokens` are each row's; an intermediate chunk has none: the arrival is the point.
    """

    round: int
    keys: bytes
    counts: bytes
    tokens: bytes


class TokenLogprobs(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Log probabilities of a round's tokens, for the rows that asked; told just before its `ExtendResult`.

    `rows` are indices of rows with one sampled token each, `counts` how many entries each has: its own token, then the
    likeliest ones in falling order. `tokens` (int32) and `values` (float32) hold the entries one after the other. The
    scheduler has no use for them.
    """

    round: int
    rows: bytes
    counts: bytes
    tokens: bytes
    values: bytes


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
    """The device side could not fill what was admitted for this request; it prefills again.

    Told of every request of a forward that was withheld, before that forward's (empty) result.
    """

    key: int


class WriteBackDone(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A store ended: its blocks are on the host, or (`success` false) its destinations hold nothing."""

    op: int
    success: bool = True


class LoadBackDone(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A load-back ended, and nothing writes to its destinations any more. Told before its round's forward.

    Without `success` the destinations hold rubbish: whoever has them in its table prefills again.
    """

    op: int
    success: bool = True


class Bootstrapped(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The two engines that share a request know each other: it may be scheduled.

    Both must hear of requests in the order of submission, or the prefilling one only when the other has given the
    request its pages: else each could hold what the other one waits for.
    """

    key: int


class RemotePrefillDone(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The peer wrote every page of a prompt here, and sampled its first tokens (an int32 column)."""

    key: int
    attempt: int
    tokens: bytes


class TransferSucceeded(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The peer has all the pages that it was to read here."""

    key: int
    attempt: int


class TransferFailed(Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A transfer ended without success; the peer reads and writes none of the pages any more."""

    key: int
    attempt: int
    message: str


Event = (
    ExtendResult
    | ForwardFailed
    | Finish
    | Abort
    | Retract
    | WriteBackDone
    | LoadBackDone
    | Bootstrapped
    | RemotePrefillDone
    | TransferSucceeded
    | TransferFailed
    | TokenLogprobs
)
