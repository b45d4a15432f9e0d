"""How a request comes back after a retraction, and what keeps it from being retracted for ever."""

import bisect
from collections.abc import Iterator

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import Refused
from control_plane.fsm.request import Request
from control_plane.fsm.states import Retracted


def admission_headroom_tokens(
    *, remaining_new_tokens: int, is_declared: bool, safe_steps: int, retraction_count: int
) -> int:
    """The output that an admission prepays (R7.3).

    Every retraction says that the admission before was too optimistic, so it raises what the next one must secure.
    A request that declared no output length prepays nothing at first: chat traffic keeps its concurrency.
    """
    windows = retraction_count + 1 if is_declared else retraction_count
    return min(remaining_new_tokens, safe_steps * windows)


class RecoveryLine:
    """Retracted requests that come back before any new prompt: those with output first, then oldest first (R7.1)."""

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self._coordinator = coordinator
        self._requests: list[Request] = []
        self._lacked: Refused | None = None
        self._freed_seen = -1

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request | None:
        """Who comes back next."""
        return self._requests[0] if self._requests else None

    @property
    def lacked(self) -> Refused | None:
        """What the first lacked when it was last tried."""
        return self._lacked

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing was freed since the first was refused."""
        return self._lacked is not None and self._coordinator.freed_count == self._freed_seen

    def join(self, request: Request) -> None:
        """A request was retracted."""
        bisect.insort(self._requests, request, key=_recovery_rank)
        self._lacked = None

    def leave(self, request: Request) -> None:
        """It came back, or is over."""
        self._requests.remove(request)
        self._lacked = None

    def refuse(self, lacked: Refused) -> None:
        """The first does not fit now."""
        self._lacked = lacked
        self._freed_seen = self._coordinator.freed_count


def _recovery_rank(request: Request) -> tuple[bool, int]:
    state = request.state
    assert isinstance(state, Retracted), f"request {request.key} recovers in {type(state).__name__}"
    return not state.resumes_generation, state.epoch
