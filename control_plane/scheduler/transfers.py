"""Transfers of pages between this engine and a peer: which are going on, and pages whose owner left meanwhile.

While a request lives, its state says whether a peer has its pages in hand (`is_pinned`). One that is aborted is over at
once, but no page may get a new owner under a live reader or writer: they are kept here until the transfer ends (R2.4).
"""

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.config import Role
from control_plane.fsm.states import RemotePrefilling, State, resources_of


def is_pinned(role: Role, state: State) -> bool:
    """Whether a peer may be at the pages of a request in this state: no victim is taken there (R5.4)."""
    match role:
        case Role.PREFILL:
            return resources_of(state) is not None
        case Role.DECODE:
            return isinstance(state, RemotePrefilling)
        case Role.FUSED:
            return False


class Transfers:
    """Transfers that were planned and have not ended, by the key of their request."""

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self._coordinator = coordinator
        self._attempts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __contains__(self, key: int) -> bool:
        return key in self._attempts

    def begin(self, key: int, attempt: int) -> None:
        """A plan tells the peer to read or write."""
        assert key not in self._attempts, f"two transfers of request {key} at once"
        self._attempts[key] = attempt

    def is_awaited(self, key: int, attempt: int) -> bool:
        """Whether this attempt is the one that is going on; any other is late."""
        return self._attempts.get(key) == attempt

    def end(self, key: int) -> None:
        """The peer has let go of the pages; those that were kept for it are given back."""
        if self._attempts.pop(key, None) is not None:
            self._coordinator.let_go(key)

    def owner_leaves(self, key: int, attempt: int, slot: int) -> bool:
        """A request gives up its pages. If a transfer is at them they are kept until it ends; False: none is.

        One that was rolled back and came back meanwhile holds other pages, which no transfer knows.
        """
        if not self.is_awaited(key, attempt):
            return False
        self._coordinator.keep(slot, key)
        return True
