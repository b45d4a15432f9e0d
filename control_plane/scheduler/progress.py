"""What a request computed since its last admission."""

from control_plane.cache.coordinator.demand import BoundaryKind, CacheProgress, RequestProgress
from control_plane.fsm.request import Request
from control_plane.fsm.states import (
    Bootstrapping,
    Decoding,
    Finished,
    PrefillDone,
    Prefilling,
    RemotePrefilling,
    Retracted,
    Submitted,
)
from control_plane.fsm.tokens import Window
from control_plane.scheduler.resident import ResidentTable


def computed_tokens(request: Request, resident: ResidentTable) -> int:
    """The one frontier of publication (R4.7): the scheduled window's end, or every known token but the last."""
    match request.state:
        case Prefilling(window=window) | PrefillDone(window=window):
            return window.end
        case Decoding(resources=resources):
            # The last known token's row is written by the forward that feeds it. Until the first decode result has
            # landed, the prefill is what was computed.
            return max(request.prefill_tokens, resident.known_tokens(resources.slot) - 1)
        case Bootstrapping() | Submitted() | RemotePrefilling() | Retracted() | Finished():
            return 0


def advance_request_progress(request: Request, resident: ResidentTable, *, prefix_granularity: int) -> RequestProgress:
    """Hash the pages completed since the last admission and say which are to be published, and what was computed.

    Nothing of the request changes but its digest chain, which only ever grows with its tokens; its progress is
    written back by the admission, and only if it succeeds (R3.2). A granularity of 0 means that nothing is cached.
    """
    resources = request.resources
    before = resources.progress
    computed = computed_tokens(request, resident)
    completed = computed // prefix_granularity if prefix_granularity else 0
    if completed > before.published_pages:
        request.chain.extend(resident.tokens(resources.slot), completed * prefix_granularity)
    return RequestProgress(before, request.chain.digests, max(completed, before.published_pages), computed)


def record_boundary(
    progress: CacheProgress, window: Window, *, prefill_tokens: int, prefix_granularity: int
) -> CacheProgress:
    """A prefill window was admitted: its last aligned boundary will have a snapshot, worth publishing or not (R4.6)."""
    boundary = window.end - window.end % prefix_granularity
    if boundary <= window.begin:
        return progress
    kind = BoundaryKind.CHUNK
    if boundary == progress.promotion_boundary:
        kind = BoundaryKind.PROMOTED
    elif boundary == prefill_tokens - prefill_tokens % prefix_granularity:
        kind = BoundaryKind.ENDPOINT
    materialized = (*progress.materialized, (boundary, kind))
    return CacheProgress(progress.published_pages, progress.access_epoch, progress.promotion_boundary, materialized)
