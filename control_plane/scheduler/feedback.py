"""What comes back from outside: results that landed, forwards that failed, requests that end.

Everything is matched by key and round: a fact about a request that is over, or about pages it no longer holds, is late
and changes nothing (R2.4).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from msgspec import Struct

from control_plane.cache.coordinator.coordinator import CacheCoordinator
from control_plane.config import Role
from control_plane.fsm.events import FillFailed
from control_plane.fsm.request import Request
from control_plane.fsm.states import Bootstrapping, PrefillDone, RemotePrefilling, Submitted, resources_of
from control_plane.messages import (
    Bootstrapped,
    ExtendResult,
    Finish,
    FinishReason,
    ForwardFailed,
    LoadBackDone,
    Note,
    NoteKind,
    RemotePrefillDone,
    Retract,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import Int32s, view
from control_plane.scheduler.admission import Admission
from control_plane.scheduler.flights import FlightLog
from control_plane.scheduler.host_copies import HostCopies
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.resident import ResidentTable
from control_plane.scheduler.stats import RetractionReason
from control_plane.scheduler.transfers import Transfers


class Ended(Struct, frozen=True):
    """A request that the scheduler itself ended; somebody must tell its client."""

    key: int
    reason: FinishReason
    message: str


class Feedback:
    """Applies facts from outside to requests and columns."""

    def __init__(
        self,
        *,
        coordinator: CacheCoordinator,
        resident: ResidentTable,
        admission: Admission,
        line: Candidates,
        requests: dict[int, Request],
        flights: FlightLog,
        transfers: Transfers,
        copies: HostCopies,
        next_epoch: Callable[[], int],
        role: Role,
        recomputes_failed_transfers: bool,
    ) -> None:
        self._coordinator = coordinator
        self._resident = resident
        self._admission = admission
        self._line = line
        self._requests = requests
        self._flights = flights
        self._transfers = transfers
        self._copies = copies
        self._role = role
        self._recomputes_failed_transfers = recomputes_failed_transfers
        self._next_epoch = next_epoch
        self.generated_tokens = 0
        self.retractions = dict.fromkeys(RetractionReason, 0)
        self._notes: list[Note] = []

    def land(self, result: ExtendResult) -> None:
        """A forward landed: tokens are appended, and it is no longer out against anybody's pages (R2.2)."""
        report = self._flights.reported(result.round)
        if report is None:
            return
        flight = report.flight
        assert result.keys == flight.batch.keys, f"the result of round {result.round} names other requests"
        keys, counts, tokens = flight.keys, view(result.counts), view(result.tokens)
        assert len(counts) == len(keys), f"the result of round {result.round} lacks counts"
        assert counts.sum() == len(tokens), f"the result of round {result.round} lacks tokens"
        slots = flight.slots
        current = self._resident.owned_since(slots, keys, result.round)
        if not current.all():
            tokens = tokens[np.repeat(current, counts)]
            slots, counts = slots[current], counts[current]
        self._resident.land(slots, counts, tokens)
        self.generated_tokens += len(tokens)
        self._copies.landed(report.storable)

    def land_in_run(self, result: ExtendResult) -> bool:
        """A forward landed that was one step of the decode run, a token for every row; False: `land` it.

        The run's rows are the same since its first round, so whoever has a row in it is still its owner.
        """
        run = self._resident.run
        if (
            run is None
            or result.round < run.first_round
            or result.keys != run.packed_keys
            or result.counts != run.one_each
            or len(result.tokens) != len(run.one_each)
            or not self._flights.reported_plainly(result.round, run.packed_keys)
        ):
            return False
        run.land(result.tokens)
        self.generated_tokens += len(run)
        return True

    def fail(self, event: ForwardFailed) -> list[Ended]:
        """A forward raised: its requests end, and nothing that it should have computed stays in the cache.

        Pages of its window may be listed already, and a request of a later round may have taken them: it prefills
        again, since what it read was never written.
        """
        report = self._flights.reported(event.round)
        if report is None:
            return []
        flight, unwritten = report.flight, report.unwritten
        current = self._resident.owned_since(flight.slots, flight.keys, event.round)
        failed = [int(key) for key in flight.keys[current]]
        misled = self._discard(unwritten)
        for key in failed:
            self._requests[key].apply(Finish(key, FinishReason.ERROR))
        self._roll_back([key for key in misled if key not in failed], RetractionReason.FORWARD_FAILED)
        return [Ended(key, FinishReason.ERROR, event.message) for key in failed]

    def finish(self, event: Finish) -> None:
        """A stop rule was met. What the request computed is published and stored; then it lets go of everything."""
        request = self._requests.get(event.key)
        if request is None:
            return
        if self._role is Role.PREFILL and event.reason is not FinishReason.ERROR:
            return  # its answer is complete; the prompt is not over before the peer has it
        if self._has_landed(request):
            self._admission.publish_completed(request)
            self._copies.ends(request)
        request.apply(event)

    def retract(self, event: Retract) -> None:
        """The device side could not fill this request's pages. Nothing is published; it prefills again (R7.5).

        If a peer was to write the rest, that was withheld, or has ended: there must be no rows behind empty pages.
        A load-back that is still out is not waited for any more (E8).
        """
        if self._role is Role.PREFILL and event.key in self._transfers:
            return  # late: all of it was computed before the peer was told
        self._transfers.end(event.key)
        spoiled = self._coordinator.give_up_loads(event.key)
        holders = self._discard([(load.group, load.blocks) for load in spoiled])
        readers = [reader for load in spoiled for reader in load.readers]
        self._roll_back([event.key, *holders, *readers], RetractionReason.NOT_FILLED)

    def bootstrapped(self, event: Bootstrapped) -> None:
        """The peer knows of a request: it takes its place in line."""
        request = self._line.bootstrapping.pop(event.key, None)
        if request is not None:
            request.apply(event)
            self._line.waiting.join(request)

    def remote_landed(self, event: RemotePrefillDone) -> None:
        """A prompt is here with its first tokens.

        Of a request that is over, or that was rolled back meanwhile, only the pages are let go of (F1).
        """
        if not self._transfers.is_awaited(event.key, event.attempt):
            return
        self._transfers.end(event.key)
        request = self._requests.get(event.key)
        if request is None or not isinstance(request.state, RemotePrefilling):
            return
        tokens = view(event.tokens)
        assert len(tokens), f"the prefill of request {event.key} landed without a token"
        slot = request.resources.slot
        self._resident.receive(slot, tokens, writable_until=self._coordinator.tables.covered_tokens(slot))
        self.generated_tokens += len(tokens)
        request.apply(event)
        self._line.remote_landed(request)

    def transfer_succeeded(self, event: TransferSucceeded) -> None:
        """The peer has read everything."""
        if not self._transfers.is_awaited(event.key, event.attempt):
            return
        self._transfers.end(event.key)
        request = self._requests.get(event.key)
        if request is not None and isinstance(request.state, PrefillDone):
            request.apply(event)

    def transfer_failed(self, event: TransferFailed) -> list[Ended]:
        """The peer will not do its half. A prompt that had pages for it is computed here, if so configured (F4)."""
        has_begun = event.key in self._transfers
        if has_begun and not self._transfers.is_awaited(event.key, event.attempt):
            return []
        self._transfers.end(event.key)
        request = self._requests.get(event.key)
        if request is None or event.attempt != request.retraction_count:
            return []  # over, or rolled back meanwhile: only the pages were waited for
        state = request.state
        if isinstance(state, RemotePrefilling) and self._recomputes_failed_transfers:
            self._roll_back([event.key], RetractionReason.TRANSFER_FAILED)
            return []
        if self._role is Role.DECODE and not isinstance(state, Bootstrapping | Submitted | RemotePrefilling):
            return []  # it has landed before
        may_move = isinstance(state, Bootstrapping | Submitted | RemotePrefilling | PrefillDone)
        request.apply(event if may_move else Finish(event.key, FinishReason.ERROR))
        return [Ended(event.key, FinishReason.ERROR, event.message)]

    def stored(self, event: WriteBackDone) -> None:
        """A store was acknowledged."""
        self._coordinator.end_store(event)

    def loaded(self, event: LoadBackDone) -> None:
        """A load-back was acknowledged. If it failed, whoever had its blocks in a table prefills again."""
        failed = self._coordinator.end_load(event)
        if failed is not None:
            holders = self._discard([(failed.group, failed.blocks)])
            self._roll_back([*failed.readers, *holders], RetractionReason.LOAD_FAILED)

    def take_notes(self) -> list[Note]:
        """Marks of what was decided since the last plan."""
        notes, self._notes = self._notes, []
        return notes

    def _discard(self, unwritten: Sequence[tuple[int, Int32s]]) -> list[int]:
        """Drop blocks from the cache that hold rubbish. Returns the keys of the requests that took one from there."""
        misled: dict[int, None] = {}
        for group, blocks in unwritten:
            listed = self._coordinator.discard(group, blocks)
            if len(listed):
                holders = self._coordinator.tables.slots_holding(group, listed)
                misled.update(dict.fromkeys(int(self._resident.key[holder]) for holder in holders))
        return list(misled)

    def _roll_back(self, keys: Iterable[int], reason: RetractionReason) -> None:
        """These requests read rubbish. They prefill again, and so does whoever took pages that they computed of it.

        Of one that has left meanwhile there is nothing but such pages.
        """
        pending = deque(dict.fromkeys(keys))
        while pending:
            key = pending.popleft()
            request = self._requests.get(key)
            resources = resources_of(request.state) if request is not None else None
            if request is None or resources is None:
                pending += self._discard(self._flights.disown(key))
                continue
            tokens = self._resident.tokens(resources.slot).copy()
            pending += self._discard(self._flights.disown(key))
            resumes_generation = len(tokens) > request.prompt_tokens
            is_recoverable = self._role is Role.DECODE  # there is no other way back (R7.1)
            request.apply(FillFailed(self._next_epoch(), resumes_generation, is_recoverable))
            request.rebase(tokens)
            self.retractions[reason] += 1
            self._notes.append(Note(NoteKind.ROLLED_BACK, key, (len(tokens),)))
            self._line.comes_back(request)

    def _has_landed(self, request: Request) -> bool:
        """Whether everything up to the publication frontier was really computed by now."""
        resources = resources_of(request.state)
        if resources is None:
            return False
        return not resources.results_in_flight or self._resident.known_tokens(resources.slot) > request.prefill_tokens
