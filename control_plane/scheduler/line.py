"""Who is waiting, who is prefilling, who decodes: each in submission order.

The waiting line remembers what every refused prompt lacked, so that asking again costs nothing while nothing changed:
a round's cost does not grow with the number of prompts that wait (R3.9).
"""

import bisect
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.cache.coordinator.demand import Refused
from control_plane.fsm.request import Request
from control_plane.fsm.states import Retracted
from control_plane.messages.columns import INT32, Int32s
from control_plane.scheduler.recovery import RecoveryLine


class Remembered(Struct, frozen=True):
    """Why a waiting prompt was not admitted, and how many admissions there had been when that was first so."""

    lacked: Refused
    awaited: tuple[bytes, ...]
    first_refused_at: int


def _key(request: Request) -> int:
    return request.key


class WaitingLine:
    """Prompts without pages, oldest first. Those before `_first_untried` were all refused and nothing changed since."""

    def __init__(self, coordinator: CacheCoordinator, *, max_overtakes: int | None) -> None:
        self._coordinator = coordinator
        self._max_overtakes = max_overtakes
        self._requests: list[Request] = []
        self._refusals: dict[int, Remembered] = {}
        self._awaiting: dict[bytes, dict[int, None]] = {}
        self._first_untried = 0
        self._freed_seen = -1
        self._admissions = 0
        self._is_passing = False
        self._seal: Request | None = None
        self._seal_told: Request | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, key: int) -> bool:
        index = bisect.bisect_left(self._requests, key, key=_key)
        return index < len(self._requests) and self._requests[index].key == key

    def join(self, request: Request) -> None:
        """A prompt starts to wait; a retracted one does so at its old place."""
        index = bisect.bisect_left(self._requests, request.key, key=_key)
        self._requests.insert(index, request)
        self._first_untried = min(self._first_untried, index)

    def leave(self, request: Request) -> None:
        """A prompt was admitted or is over."""
        index = bisect.bisect_left(self._requests, request.key, key=_key)
        assert self._requests[index] is request, f"request {request.key} does not wait"
        del self._requests[index]
        if index < self._first_untried:
            self._first_untried -= 1
        self._forget(request)

    def admitted(self, request: Request) -> None:
        """A prompt leaves with pages: one more overtook those that were refused before it."""
        self._admissions += 1
        self.leave(request)

    def refusal(self, request: Request) -> Remembered | None:
        """What a prompt lacked when it was last tried."""
        return self._refusals.get(request.key)

    def refuse(self, request: Request, lacked: Refused, awaited: tuple[bytes, ...]) -> None:
        """Remember what a prompt lacked. It is tried again when that may have changed."""
        before = self._refusals.get(request.key)
        self._forget(request)
        first_refused_at = before.first_refused_at if before else self._admissions
        self._refusals[request.key] = Remembered(lacked, awaited, first_refused_at)
        for digest in awaited:
            self._awaiting.setdefault(digest, {})[request.key] = None
            self._coordinator.index.await_digest(digest)

    def pass_over(self, request: Request) -> None:
        """What is left of the budget is too little for this prompt, though perhaps not for one behind it."""
        self._is_passing = True

    def overtakes(self, request: Request) -> int:
        """Admissions since this prompt was first refused."""
        refusal = self._refusals.get(request.key)
        return self._admissions - refusal.first_refused_at if refusal else 0

    def seals(self, request: Request) -> bool:
        """Whether a refused prompt was overtaken so often that nobody behind it may be admitted."""
        return self._max_overtakes is not None and self.overtakes(request) >= self._max_overtakes

    def take_seal(self) -> Request | None:
        """Who ended the last scan by sealing the line, if that is news."""
        if self._seal is self._seal_told:
            return None
        self._seal_told = self._seal
        return self._seal

    def candidates(self) -> Iterator[Request]:
        """Prompts that could be admitted now, in order. The caller admits, refuses or stops at each.

        Ends behind a prompt that seals the line. Prompts that cannot have become admissible are passed over.
        """
        start = self._start()
        self._seal = None
        if start > 0 and self.seals(self._requests[0]):
            self._seal = self._requests[0]
            return
        index = start
        self._is_passing = False
        while index < len(self._requests):
            request = self._requests[index]
            if not self._is_hopeless(request):
                yield request
                if index < len(self._requests) and self._requests[index] is not request:
                    continue  # it was admitted and left the line
                if index == len(self._requests):
                    return  # so was the last
            if self.seals(request):
                self._seal = request
                return
            index += 1
            if not self._is_passing:
                self._first_untried = max(self._first_untried, index)

    def _start(self) -> int:
        """Where the scan begins: behind those for whom nothing changed."""
        for digest in self._coordinator.index.drain_arrived():
            for key in self._awaiting.pop(digest, ()):
                self._ask_again(key)
        if self._coordinator.freed_count != self._freed_seen:
            self._freed_seen = self._coordinator.freed_count
            self._first_untried = 0
        return self._first_untried

    def _ask_again(self, key: int) -> None:
        """More of this prompt is cached than when it was refused. Its place in the overtaking stays."""
        index = bisect.bisect_left(self._requests, key, key=_key)
        before = self._refusals[key]
        self._forget(self._requests[index])
        lacked = Refused(before.lacked.group, before.lacked.wanted, before.lacked.available, needs_blocks=0)
        self._refusals[key] = Remembered(lacked, (), before.first_refused_at)
        self._first_untried = min(self._first_untried, index)

    def _is_hopeless(self, request: Request) -> bool:
        refusal = self._refusals.get(request.key)
        return refusal is not None and refusal.lacked.needs_blocks > self._coordinator.available_blocks

    def _forget(self, request: Request) -> None:
        refusal = self._refusals.pop(request.key, None)
        for digest in refusal.awaited if refusal else ():
            keys = self._awaiting.get(digest)
            if keys is None:
                continue
            keys.pop(request.key, None)
            if not keys:
                del self._awaiting[digest]
                self._coordinator.index.stop_awaiting(digest)


class DecodeLine:
    """Slots whose owner decodes, ordered by key. The columns are rebuilt only when somebody came or went."""

    def __init__(self) -> None:
        self._members: list[tuple[int, int]] = []
        self._columns: tuple[Int32s, Int32s] | None = None

    def __len__(self) -> int:
        return len(self._members)

    def join(self, key: int, slot: int) -> None:
        """A request's prefill is scheduled to its end."""
        bisect.insort(self._members, (key, slot))
        self._columns = None

    def leave(self, key: int, slot: int) -> None:
        """A request ended or was retracted. Who is not in the line is not missed."""
        index = bisect.bisect_left(self._members, (key, slot))
        if index < len(self._members) and self._members[index] == (key, slot):
            del self._members[index]
            self._columns = None

    def columns(self) -> tuple[Int32s, Int32s]:
        """Keys and slots, in submission order."""
        if self._columns is None:
            pairs = np.array(self._members, dtype=INT32).reshape(-1, 2)
            self._columns = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
        return self._columns


class Candidates:
    """Every live request by where it stands. Each part is in submission order."""

    def __init__(self, coordinator: CacheCoordinator, *, max_overtakes: int | None, hands_over: bool) -> None:
        """With `hands_over` (role P) a prompt that is computed goes to a peer instead of being decoded here."""
        self._hands_over = hands_over
        self.bootstrapping: dict[int, Request] = {}
        self.recovering = RecoveryLine(coordinator)
        self.waiting = WaitingLine(coordinator, max_overtakes=max_overtakes)
        self.remote: dict[int, Request] = {}  # a peer prefills them
        self.prefilling: list[Request] = []
        self.completed: list[Request] = []  # to be handed over
        self.decoding = DecodeLine()

    @property
    def only_decodes(self) -> bool:
        """Whether every live request decodes."""
        return not (
            self.waiting or self.prefilling or self.recovering or self.completed or self.remote or self.bootstrapping
        )

    def comes_back(self, request: Request) -> None:
        """A request lost its pages: it waits at the place that its state gives it."""
        assert isinstance(request.state, Retracted), f"request {request.key} lost nothing"
        if request.state.is_recoverable:
            self.recovering.join(request)
        else:
            self.waiting.join(request)

    def starts_prefill(self, request: Request) -> None:
        """A prefill has pages and is not complete. Older ones go first, whoever came back when."""
        bisect.insort(self.prefilling, request, key=_key)

    def completes_prefill(self, request: Request) -> None:
        """The last chunk of a prompt is scheduled, or landed from a peer."""
        if self._hands_over:
            bisect.insort(self.completed, request, key=_key)
        else:
            self.decoding.join(request.key, request.resources.slot)

    def remote_landed(self, request: Request) -> None:
        """A peer's pages of a prompt are here."""
        del self.remote[request.key]
        self.completes_prefill(request)

    def leaves_pages(self, request: Request, slot: int) -> None:
        """A request gives up its pages, wherever it stands."""
        if request in self.prefilling:
            self.prefilling.remove(request)
        if request in self.completed:
            self.completed.remove(request)
        self.remote.pop(request.key, None)
        self.decoding.leave(request.key, slot)

    def without_pages(self) -> int:
        """How many requests wait, for whatever it may be."""
        return len(self.bootstrapping) + len(self.recovering) + len(self.waiting)

    def drop(self, request: Request) -> None:
        """A request without pages is over."""
        if self.bootstrapping.pop(request.key, None) is not None:
            return
        if request.key in self.waiting:
            self.waiting.leave(request)
        elif request in self.recovering:
            self.recovering.leave(request)
