"""The language of the boundary: everything that crosses between the planes, or from a caller into the scheduler.

May import the standard library, msgspec, numpy and `control_plane.errors`. Start reading at `plan.py`, then
`events.py`; `wire.py` is the one encoder and decoder. The data plane imports this package and nothing else of the
control plane.
"""

from control_plane.messages.events import (
    Abort,
    Bootstrapped,
    Event,
    ExtendResult,
    Finish,
    FinishReason,
    ForwardFailed,
    LoadBackDone,
    RemotePrefillDone,
    Retract,
    TokenLogprobs,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.logprobs import TokenLogprob
from control_plane.messages.plan import (
    NO_LOGPROBS,
    NOT_SAMPLED,
    BlockList,
    ExecutionPlan,
    ForwardBatch,
    LoadBack,
    Note,
    NoteKind,
    RemoteWork,
    RequestSpec,
    Sampling,
    SlotBinding,
    Store,
    StoreSourceGuard,
    TableEdit,
)

__all__ = [
    "NO_LOGPROBS",
    "NOT_SAMPLED",
    "Abort",
    "BlockList",
    "Bootstrapped",
    "Event",
    "ExecutionPlan",
    "ExtendResult",
    "Finish",
    "FinishReason",
    "ForwardBatch",
    "ForwardFailed",
    "LoadBack",
    "LoadBackDone",
    "Note",
    "NoteKind",
    "RemotePrefillDone",
    "RemoteWork",
    "RequestSpec",
    "Retract",
    "Sampling",
    "SlotBinding",
    "Store",
    "StoreSourceGuard",
    "TableEdit",
    "TokenLogprob",
    "TokenLogprobs",
    "TransferFailed",
    "TransferSucceeded",
    "WriteBackDone",
]
