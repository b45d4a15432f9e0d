"""What happens when a decode finds no block: somebody gives room, so that nobody waits for ever.

Without a host tier there is nothing to load back from: the victim is a blocked decode itself, its tokens stay, and it
prefills again like a new prompt (R7.1). The youngest goes first, and its room is offered to the others in the round.
"""

from control_plane.fsm.events import RetractForCapacity
from control_plane.fsm.request import Request
from control_plane.messages import NoteKind
from control_plane.scheduler.admission import AdmissionFeedback
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.phases import Desk, schedule_blocked_decode
from control_plane.scheduler.plan_build import PlanBuild


def retract_blocked_decodes(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """Retract blocked decodes until the remaining ones run; whether any was retracted.

    Fires only when no prefill advanced in this round: one that did will release the line by itself (R5.1). A victim
    whose forward is still out is waited for, since its result would land on pages it no longer owns (R5.4).
    """
    if build.has_prefill_progress or not feedback.blocked_decodes:
        return False
    blocked = list(feedback.blocked_decodes)
    has_retracted = False
    while blocked:
        victim = blocked[-1]
        if victim.resources.results_in_flight:
            return has_retracted
        blocked.pop()
        _retract(desk, build, line, victim)
        has_retracted = True
        while blocked and schedule_blocked_decode(desk, build, feedback, blocked[0]):
            blocked.pop(0)
    return has_retracted


def retract_stuck_prefill(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> bool:
    """Last resort: nothing was built, nothing is out, and a prefill that holds pages finds no room; whether it went.

    Its blocks lie scattered over parents that other groups need. With the cache dropped it comes back alone in an
    empty pool, packed as the capacity model assumes.
    """
    if not build.is_empty or desk.rounds_in_flight or not line.prefilling or not feedback.admission_failed:
        return False
    victim = line.prefilling[0]
    _retract(desk, build, line, victim)
    return desk.clear_cache()


def _retract(desk: Desk, build: PlanBuild, line: Candidates, victim: Request) -> None:
    resources = victim.resources
    tokens = desk.resident.tokens(resources.slot).copy()
    desk.admission.publish_completed(victim)
    blocks_before = desk.admission.available_blocks
    epoch = desk.next_retraction_epoch()
    victim.apply(RetractForCapacity(epoch, resumes_generation=len(tokens) > victim.prompt_tokens))
    victim.rebase(tokens)
    line.waiting.join(victim)
    given_back = desk.admission.available_blocks - blocks_before
    build.output.note(NoteKind.RETRACTED, victim.key, len(tokens), given_back, victim.retraction_count)
