"""The phases that role grammars are made of. A phase takes candidates in submission order; its name is in the notes."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from control_plane.cache.coordinator.demand import Refused
from control_plane.config import Role
from control_plane.fsm.request import Request
from control_plane.fsm.states import Prefilling
from control_plane.fsm.tokens import Window
from control_plane.messages import NoteKind
from control_plane.messages.columns import Int32s, pack
from control_plane.scheduler.admission import Admission, AdmissionFeedback, Refusal
from control_plane.scheduler.host_copies import HostCopies
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.plan_build import Decodes, Extend, HandOver, PlanBuild, RemotePrompt
from control_plane.scheduler.resident import ResidentTable
from control_plane.scheduler.transfers import Transfers


class Desk(Protocol):
    """What the phases share besides the build: the admission, the columns, and requests by key."""

    admission: Admission
    resident: ResidentTable
    requests: dict[int, Request]
    transfers: Transfers
    copies: HostCopies

    @property
    def role(self) -> Role:
        """What part of a request's life is served here."""
        ...

    @property
    def is_mixed(self) -> bool:
        """Whether prefills may join decodes."""
        ...

    @property
    def rounds_in_flight(self) -> int:
        """Forwards that have not reported."""
        ...

    def residents(self) -> Iterator[Request]:
        """Every request that holds pages, in submission order."""
        ...

    def clear_cache(self) -> bool:
        """Drop the whole cache, if no request holds pages."""
        ...

    @property
    def recovers_in_order(self) -> bool:
        """Whether a request without pages on the host comes back before new prompts, too (R7.1)."""
        ...

    def next_retraction_epoch(self) -> int:
        """A number that rises with every retraction."""
        ...


def schedule_decode_batch(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Every decode that has a token left to make and a block to write to.

    Only requests that need a block or completed a page are looked at. While the line stays as it is, its run says which
    those are, and counts; the rest of this function is the same in plain words.
    """
    if not len(line.decoding):
        return
    keys, slots = line.decoding.columns()
    resident = desk.resident
    run = resident.run_of(keys, slots, round_number=build.round_number)
    rows = resident.rows_to_look_at(slots) if run is None else run.rows_to_look_at()
    refused = [row for row in rows if not _admit_decode(desk, build, feedback, desk.requests[int(keys[row])])]
    if run is not None:
        if rows:
            run.looked_at(rows)
        if not refused:
            build.push_operation(run.step())
            return
    ready = resident.has_step_left(slots)
    ready[refused] = False
    if ready.all():
        _push_decodes(desk, build, keys, slots)
    elif ready.any():
        _push_decodes(desk, build, keys[ready], slots[ready])


def schedule_blocked_decode(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, request: Request) -> bool:
    """Try again for one decode, after somebody gave room."""
    if not _admit_decode(desk, build, feedback, request):
        return False
    slots = np.array([request.resources.slot], dtype=np.int32)
    _push_decodes(desk, build, np.array([request.key], dtype=np.int32), slots)
    return True


def schedule_resident_chunks(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """The next chunk of each prefill that has pages; whether one of them holds the line.

    A resident prefill that finds no room holds it as well: a newcomer must not take what it waits for (R3.5).
    """
    for request in list(line.prefilling):
        window = None
        if build.budget_tokens:
            window = desk.admission.next_chunk(request, budget_tokens=build.budget_tokens, output=build.output)
        if window is None:
            build.output.note(NoteKind.NO_BUDGET, request.key, build.budget_tokens)
            return True
        if isinstance(window, Refused):
            _note_refusal(build, feedback, request, window)
            return True
        _push_chunk(desk, build, request, window)
        if holds_head_of_line(build, request):
            return True
        line.prefilling.remove(request)
        line.completes_prefill(request)
    return False


def schedule_readmission(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """The next retracted request comes back, one at a time (R7.1); whether it holds the line.

    One that does not fit waits, and is never reported as blocked: to make somebody else give way for it would only
    swap the two (R7.2).
    """
    request = line.recovering.first
    if request is None or request.key in build.retracted:
        return False
    if not build.budget_tokens:
        build.output.note(NoteKind.NO_BUDGET, request.key, 0)
        return False
    if line.recovering.is_hopeless or any(other.retraction_count for other in line.prefilling):
        return False
    if not desk.resident.has_free_slot:
        build.output.note(NoteKind.NO_SLOT, request.key, desk.resident.slots)
        return False
    if desk.copies.awaits_store(request):
        build.output.note(NoteKind.AWAITS_STORE, request.key)
        return False
    outcome = desk.admission.first_chunk(
        request, budget_tokens=build.budget_tokens, round_number=build.round_number, output=build.output
    )
    if outcome is None:
        build.output.note(NoteKind.NO_BUDGET, request.key, build.budget_tokens)
        return False
    if isinstance(outcome, Refusal):
        lacked = outcome.lacked
        build.output.note(NoteKind.BLOCKED, request.key, lacked.group, lacked.wanted, lacked.available)
        line.recovering.refuse(lacked)
        return False
    line.recovering.leave(request)
    _push_chunk(desk, build, request, outcome)
    return _settles(build, line, request)


def schedule_recovery(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """What a decoding engine prefills itself: a recovery that is under way, else the next readmission (R6.D)."""
    if not schedule_resident_chunks(desk, build, feedback, line) and not build.has_prefill_progress:
        schedule_readmission(desk, build, feedback, line)


def seals_newcomers(build: PlanBuild, line: Candidates) -> bool:
    """Whether a retracted request waits to come back: no new prompt may take what it waits for (R7.2).

    Not one of this very round: what it gave was meant for somebody else.
    """
    waiting = next((request for request in line.recovering if request.key not in build.retracted), None)
    if waiting is None:
        return False
    if len(line.waiting):
        first = next(iter(line.waiting))
        build.output.note(NoteKind.AWAITS_RECOVERY, first.key, waiting.key)
    return True


def schedule_waiting(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Whoever has no pages: the next readmission, then new prompts if none waits before them."""
    if not schedule_readmission(desk, build, feedback, line) and not seals_newcomers(build, line):
        schedule_new_prompts(desk, build, feedback, line)


def schedule_new_prompts(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """First chunks of waiting prompts, until the budget or the slots are gone or one holds the line."""
    for request in line.waiting.candidates():
        if not build.budget_tokens:
            build.output.note(NoteKind.NO_BUDGET, request.key, 0)
            return
        if request.key in build.retracted:
            line.waiting.pass_over(request)
            continue
        if not desk.resident.has_free_slot:
            build.output.note(NoteKind.NO_SLOT, request.key, desk.resident.slots)
            return
        outcome = desk.admission.first_chunk(
            request, budget_tokens=build.budget_tokens, round_number=build.round_number, output=build.output
        )
        if outcome is None:
            build.output.note(NoteKind.NO_BUDGET, request.key, build.budget_tokens)
            line.waiting.pass_over(request)
            continue
        if isinstance(outcome, Refusal):
            _refuse(build, feedback, line, request, outcome)
            continue
        line.waiting.admitted(request)
        _push_chunk(desk, build, request, outcome)
        if _settles(build, line, request):
            return
    _note_seal(build, line)


def schedule_remote_prompt(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """At most one new prompt goes to the peer, whole, beside the batch (R6.D).

    More would drain the pool for prompts of which nothing has arrived yet.
    """
    if build.remote_prompts or seals_newcomers(build, line):
        return
    for request in line.waiting.candidates():
        if not desk.resident.has_free_slot:
            build.output.note(NoteKind.NO_SLOT, request.key, desk.resident.slots)
            return
        outcome = desk.admission.remote_prompt(request, round_number=build.round_number, output=build.output)
        if isinstance(outcome, Refusal):
            _refuse(build, feedback, line, request, outcome)
            continue
        line.waiting.admitted(request)
        line.remote[request.key] = request
        desk.transfers.begin(request.key, request.retraction_count)
        build.push_operation(RemotePrompt(request, request.resources.slot, outcome))
        return
    _note_seal(build, line)


def hand_over_completed(desk: Desk, build: PlanBuild, line: Candidates) -> None:
    """Prompts that are computed go to the peer, which reads their pages from now on (R6.P).

    First of all phases: until the transfer ends the pages are taken, which outranks feeding more prompts (F9).
    """
    for request in list(line.completed):
        if request.resources.results_in_flight:
            continue
        first_token = desk.admission.hand_over(request, output=build.output)
        line.completed.remove(request)
        desk.transfers.begin(request.key, request.retraction_count)
        build.push_operation(HandOver(request, request.resources.slot, first_token))


def holds_head_of_line(build: PlanBuild, request: Request) -> bool:
    """Whether a prefill that was just scheduled is still incomplete: then nothing behind it is scheduled (R3.5).

    Per-chunk admission gives it no claim on the blocks it still needs; a newcomer could take them for good.
    """
    if not isinstance(request.state, Prefilling):
        return False
    build.output.note(NoteKind.LINE_HELD, request.key, request.prefill_tokens - request.state.window.end)
    return True


def _settles(build: PlanBuild, line: Candidates, request: Request) -> bool:
    """A first chunk is in the batch: its owner prefills or decodes from now on. Whether it holds the line."""
    if holds_head_of_line(build, request):
        line.starts_prefill(request)
        return True
    line.completes_prefill(request)
    return False


def _admit_decode(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, request: Request) -> bool:
    refused = desk.admission.decode(request, output=build.output)
    if refused is None:
        return True
    _note_refusal(build, feedback, request, refused)
    feedback.blocked_decodes.append(request)
    return False


def _push_chunk(desk: Desk, build: PlanBuild, request: Request, window: Window) -> None:
    checkpoint = desk.admission.checkpoint(window)
    build.push_operation(Extend(request, request.resources.slot, window, checkpoint))


def _push_decodes(desk: Desk, build: PlanBuild, keys: Int32s, slots: Int32s) -> None:
    positions = desk.resident.plan_step(slots)
    build.push_operation(Decodes(pack(keys), pack(slots), pack(positions), len(slots)))


def _note_refusal(build: PlanBuild, feedback: AdmissionFeedback, request: Request, refused: Refused) -> None:
    feedback.report_refusal(request)
    build.output.note(NoteKind.BLOCKED, request.key, refused.group, refused.wanted, refused.available)


def _refuse(
    build: PlanBuild, feedback: AdmissionFeedback, line: Candidates, request: Request, refusal: Refusal
) -> None:
    """A waiting prompt does not fit now; the line remembers what it lacked."""
    _note_refusal(build, feedback, request, refusal.lacked)
    line.waiting.refuse(request, refusal.lacked, refusal.awaited)


def _note_seal(build: PlanBuild, line: Candidates) -> None:
    """The scan of the waiting line ended: whether at somebody whom nobody passes any more."""
    sealing = line.waiting.take_seal()
    if sealing is not None:
        build.output.note(NoteKind.SEALED, sealing.key, line.waiting.overtakes(sealing))
