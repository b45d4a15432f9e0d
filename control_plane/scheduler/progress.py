"""What a request computed since its last admission."""

from control_plane.cache.coordinator.demand import NO_PROGRESS, RequestProgress
from control_plane.fsm.request import Request
from control_plane.fsm.states import Decoding, Finished, PrefillDone, Prefilling, Retracted, Submitted
from control_plane.scheduler.resident import ResidentTable


def computed_tokens(request: Request, resident: ResidentTable) -> int:
    """The one frontier of publication (R4.7): the scheduled window's end, or every known token but the last."""
    match request.state:
        case Prefilling(window=window) | PrefillDone(window=window):
            return window.end
        case Decoding(resources=resources):
            # The last known token's row is written by the forward that feeds it. Until the first decode result has
            # landed, the prefill is what was computed.
            return max(request.prefill_tokens, int(resident.landed[resources.slot]) - 1)
        case Submitted() | Retracted() | Finished():
            return 0


def advance_request_progress(request: Request, resident: ResidentTable, *, prefix_granularity: int) -> RequestProgress:
    """Hash the pages completed since the last admission and say which are to be published.

    Nothing of the request changes but its digest chain, which only ever grows with its tokens; the published count is
    written back by the admission, and only if it succeeds (R3.2).
    """
    if not prefix_granularity:
        return NO_PROGRESS
    resources = request.resources
    published, epoch = resources.progress.published_pages, resources.progress.access_epoch
    completed = computed_tokens(request, resident) // prefix_granularity
    if completed <= published:
        return RequestProgress((), published, published, epoch)
    request.chain.extend(resident.tokens(resources.slot), completed * prefix_granularity)
    return RequestProgress(request.chain.digests, published, completed, epoch)
