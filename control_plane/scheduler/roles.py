"""A role is a list of phases. Priority is the order of the lines, fairness the submission order within a phase."""

from control_plane.scheduler.admission import AdmissionFeedback
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.phases import (
    Desk,
    schedule_decode_batch,
    schedule_new_prompts,
    schedule_readmission,
    schedule_resident_chunks,
    seals_newcomers,
)
from control_plane.scheduler.plan_build import PlanBuild
from control_plane.scheduler.retraction import retract_and_grant


def build_mixed_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Decodes first, since a client is reading them; prefills spend what is left of the budget (R6.F)."""
    schedule_decode_batch(desk, build, feedback, line)
    schedule_prefills(desk, build, feedback, line)
    retract_and_grant(desk, build, feedback, line)


def build_unmixed_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Prefills alone; decodes get the round only if no prefill was scheduled (R6.F)."""
    schedule_prefills(desk, build, feedback, line)
    if not build.has_prefill_progress:
        schedule_decode_batch(desk, build, feedback, line)
    retract_and_grant(desk, build, feedback, line)


def schedule_prefills(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """A readmission, since its pages on the host could go; resident chunks; then new prompts, if nobody waits before."""
    if schedule_readmission(desk, build, feedback, line) or schedule_resident_chunks(desk, build, feedback, line):
        return
    if not seals_newcomers(build, line):
        schedule_new_prompts(desk, build, feedback, line)
