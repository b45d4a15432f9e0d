"""When an admission finds no room and no prefill moves: a victim gives its blocks to the one that was blocked.

Victim and beneficiary meet in the same round, so no block lies free for whoever asks first in the next (R5.2). What a
victim computed goes to the host tier, if there is one, before its blocks are anybody else's; it comes back in order.
Without one it keeps its tokens and prefills again like a new prompt (R7.1).
"""

from control_plane.config import Role
from control_plane.fsm.events import RetractForCapacity
from control_plane.fsm.request import Request
from control_plane.fsm.states import Prefilling
from control_plane.messages import NoteKind
from control_plane.scheduler.admission import AdmissionFeedback
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.phases import (
    Desk,
    schedule_blocked_decode,
    schedule_readmission,
    schedule_recovery,
    schedule_remote_prompt,
    schedule_resident_chunks,
    schedule_waiting,
)
from control_plane.scheduler.plan_build import PlanBuild
from control_plane.scheduler.transfers import is_pinned


def retract_and_grant(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Retract until the blocked admission fits or nobody qualifies (R5.1, R5.2).

    Fires only when no prefill advanced in this round: one that did will release the line by itself. Decode steps do not
    count, since they release nothing.
    """
    if build.has_prefill_progress or not feedback.admission_failed:
        return
    loads_out, stores_out = desk.copies.loads_out, desk.copies.pinned_stores_out
    if loads_out or stores_out:
        # A load-back writes pages that its request owns; a store that holds blocks gives them back by itself (R5.4).
        build.output.note(NoteKind.DEFERRED, 0, loads_out, stores_out, 0)
        return
    while (choice := _quiescent_victim(desk, build)) is not None:
        victim, is_last_resort = choice
        _retract(desk, build, feedback, line, victim, is_last_resort=is_last_resort)
        decodes_first = is_last_resort or victim.retraction_count > 1
        if _grant(desk, build, feedback, line, decodes_first=decodes_first) or not _can_join(desk, build, feedback):
            return
    if build.retracted and build.is_empty and not desk.rounds_in_flight:
        _start_over(desk, build, feedback, line)


def restart_if_alone(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Role P: a prompt that finds no room though everything that is held is its own begins again, in this round.

    Where blocks of a group share a parent, those of a prefix hit, and those placed beside others that have left since,
    lie scattered: more parents are held than the capacity model counts, and nobody is left to give any back. In a pool
    that is empty of all else they are packed as the model counts, and nobody is admitted before the prompt is complete
    (R3.5), so it is not refused again: one restart is enough, and no request waits for ever (8.3). It is no victim,
    since nothing that it gives goes to another (R5.7).
    """
    request = feedback.capacity_blocker
    if request is None or not build.is_empty or desk.rounds_in_flight or not desk.admission.holds_all(request):
        return
    slot = request.resources.slot
    computed_tokens, held_blocks = desk.resident.planned_tokens(slot), desk.admission.releasable_blocks(slot)
    tokens = desk.resident.tokens(slot).copy()
    request.apply(RetractForCapacity(desk.next_retraction_epoch(), resumes_generation=False, is_recoverable=True))
    request.rebase(tokens)
    request.starts_afresh = True
    line.comes_back(request)
    build.output.note(NoteKind.RESTARTED, request.key, computed_tokens, held_blocks)
    schedule_readmission(desk, build, feedback, line)


def choose_victim(desk: Desk, *, spares_covered: bool) -> Request | None:
    """Whose blocks are worth the least: incomplete prefills first, since nobody reads them yet; then decodes.

    Within each, who releases most, then who has the fewest tokens to compute again, then the oldest (R5.5). A request
    whose admission secured its whole generation is spared: it would have to take back exactly what it gave (R7.4).
    """
    best: tuple[tuple[bool, int, int], Request] | None = None
    for request in desk.residents():
        if is_pinned(desk.role, request.state) or (spares_covered and request.is_generation_covered):
            continue
        slot = request.resources.slot
        rank = (
            not isinstance(request.state, Prefilling),
            -desk.admission.releasable_blocks(slot),
            desk.resident.known_tokens(slot),
        )
        if best is None or rank < best[0]:
            best = rank, request
    return best[1] if best else None


def _quiescent_victim(desk: Desk, build: PlanBuild) -> tuple[Request, bool] | None:
    """The victim, unless its forward is still out: then the round waits for it rather than take a worse one (R5.4).

    And whether it is the last resort (R5.6): when everybody is spared, nothing was built and nothing is out, nobody is
    spared. Without it, residents that prepaid their generation could starve each other of a window for ever.
    """
    victim, is_last_resort = choose_victim(desk, spares_covered=True), False
    if victim is None and build.is_empty and not desk.rounds_in_flight:
        victim, is_last_resort = choose_victim(desk, spares_covered=False), True
    if victim is None:
        return None
    if victim.resources.results_in_flight:
        build.output.note(NoteKind.DEFERRED, victim.key, 0, 0, victim.resources.results_in_flight)
        return None
    return victim, is_last_resort


def _grant(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates, *, decodes_first: bool) -> bool:
    """Offer what was freed to blocked decodes, then to the blocker; if the blocker is gone, to a prompt first (R5.2).

    With `decodes_first` never to a prompt before a decode: it might only come to stand where the victim stood, and the
    two would take turns for ever (R5.6; the same for a victim that was thrown out before).
    A victim of this round gets nothing back, or the two would swap places for ever.
    """
    blocker = feedback.capacity_blocker
    is_gone = blocker is not None and blocker.key in build.retracted
    if is_gone and not decodes_first and _grant_to_prefill(desk, build, feedback, line):
        return True
    if _grant_to_decodes(desk, build, feedback):
        return True
    return _grant_to_prefill(desk, build, feedback, line)


def _grant_to_decodes(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback) -> bool:
    """Whether a blocked decode that still holds its pages got a block, in order."""
    has_granted = False
    for request in list(feedback.blocked_decodes):
        if request.key in build.retracted or request.resources.results_in_flight:
            continue
        if not schedule_blocked_decode(desk, build, feedback, request):
            break
        has_granted = True
    return has_granted


def _grant_to_prefill(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """Whether a prefill, resident, returning or new, got its pages, if it may join this round."""
    if desk.role is Role.DECODE:
        # What the peer prefills rides beside the batch; what is recovered here has a round to itself.
        schedule_remote_prompt(desk, build, feedback, line)
        if build.decodes or build.has_prefill_progress:
            return build.has_prefill_progress
        schedule_recovery(desk, build, feedback, line)
    elif _can_prefill(desk, build) and not schedule_resident_chunks(desk, build, feedback, line):
        schedule_waiting(desk, build, feedback, line)
    return build.has_prefill_progress


def _can_prefill(desk: Desk, build: PlanBuild) -> bool:
    return desk.is_mixed or not build.decodes


def _can_join(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback) -> bool:
    """Whether a grant to the blocker could still join this round, if only there were room."""
    if desk.role is not Role.DECODE:
        return _can_prefill(desk, build)
    blocker = feedback.capacity_blocker
    return not build.decodes or (blocker is not None and not isinstance(blocker.state, Prefilling))


def _start_over(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Nobody could be served with what was freed, and nothing moves by itself.

    Blocks lie scattered over parents that other groups need. With the cache dropped the first in line comes back alone
    in an empty pool, packed as the capacity model assumes. While a copy is out something does move: then it waits.
    """
    if desk.clear_cache():
        build.retracted.clear()
        schedule_waiting(desk, build, feedback, line)


def _retract(
    desk: Desk,
    build: PlanBuild,
    feedback: AdmissionFeedback,
    line: Candidates,
    victim: Request,
    *,
    is_last_resort: bool,
) -> None:
    movable = [request for request in desk.residents() if not is_pinned(desk.role, request.state)]
    spared = 0 if is_last_resort else sum(request.is_generation_covered for request in movable)
    was_prefilling = isinstance(victim.state, Prefilling)
    tokens = desk.resident.tokens(victim.resources.slot).copy()
    is_stored = desk.admission.give_away(victim, build.output)
    blocks_before = desk.admission.available_blocks
    resumes_generation = len(tokens) > victim.prompt_tokens
    is_recoverable = is_stored or desk.recovers_in_order
    victim.apply(RetractForCapacity(desk.next_retraction_epoch(), resumes_generation, is_recoverable=is_recoverable))
    victim.rebase(tokens)
    # Alone and yet no room: its blocks lie scattered over parents that it needs for other groups.
    victim.starts_afresh = not desk.resident.count and feedback.capacity_blocker is victim
    line.comes_back(victim)
    build.retracted[victim.key] = None
    given_back = desk.admission.available_blocks - blocks_before
    served = feedback.capacity_blocker.key if feedback.capacity_blocker else 0
    what = (len(tokens), given_back, victim.retraction_count, served)
    why = (len(movable) - spared, spared, was_prefilling, is_last_resort, is_recoverable)
    build.output.note(NoteKind.RETRACTED, victim.key, *what, *map(int, why))
