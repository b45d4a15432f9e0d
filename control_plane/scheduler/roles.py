"""A role is a list of phases. Priority is the order of the lines, fairness the submission order within a phase."""

from control_plane.scheduler.admission import AdmissionFeedback
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.phases import (
    Desk,
    schedule_decode_batch,
    schedule_new_prompts,
    schedule_resident_chunks,
)
from control_plane.scheduler.plan_build import PlanBuild
from control_plane.scheduler.retraction import retract_blocked_decodes, retract_stuck_prefill


def build_mixed_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Decodes first, since a client is reading them; prefills spend what is left of the budget (R6.F)."""
    schedule_decode_batch(desk, build, feedback, line)
    schedule_prefills(desk, build, feedback, line)
    make_progress(desk, build, feedback, line)


def build_unmixed_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Prefills alone; decodes get the round only if no prefill was scheduled (R6.F)."""
    schedule_prefills(desk, build, feedback, line)
    if build.has_prefill_progress:
        return
    schedule_decode_batch(desk, build, feedback, line)
    make_progress(desk, build, feedback, line)


def make_progress(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Whoever is blocked gives way, and the room is offered in the same round."""
    if retract_blocked_decodes(desk, build, feedback, line) and build.is_empty:
        schedule_prefills(desk, build, feedback, line)
    if retract_stuck_prefill(desk, build, feedback, line):
        schedule_prefills(desk, build, feedback, line)


def schedule_prefills(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Resident chunks, then new prompts, unless a resident one holds the line."""
    if not schedule_resident_chunks(desk, build, feedback, line):
        schedule_new_prompts(desk, build, feedback, line)
