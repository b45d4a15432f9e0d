"""A role is a list of phases. Priority is the order of the lines, fairness the submission order within a phase."""

from collections.abc import Callable

from control_plane.config import Role, SchedulerConfig
from control_plane.scheduler.admission import AdmissionFeedback
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.phases import (
    Desk,
    hand_over_completed,
    schedule_decode_batch,
    schedule_new_prompts,
    schedule_readmission,
    schedule_recovery,
    schedule_remote_prompt,
    schedule_resident_chunks,
    seals_newcomers,
)
from control_plane.scheduler.plan_build import PlanBuild
from control_plane.scheduler.retraction import restart_if_alone, retract_and_grant

Grammar = Callable[[Desk, PlanBuild, AdmissionFeedback, Candidates], None]


def grammar_of(config: SchedulerConfig) -> Grammar:
    """The phases of the configured role."""
    match config.role:
        case Role.PREFILL:
            return build_prefill_plan
        case Role.DECODE:
            return build_decode_plan
        case Role.FUSED:
            return build_mixed_plan if config.mixed else build_unmixed_plan


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


def build_prefill_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """Completed prompts out, then more prompts in (R6.P). Nobody is retracted: transfers give pages back (R5.7).

    Only who holds everything that is held waits for no transfer, and helps itself.
    """
    hand_over_completed(desk, build, line)
    schedule_prefills(desk, build, feedback, line)
    restart_if_alone(desk, build, feedback, line)


def build_decode_plan(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """A recovery has the round to itself; else the decodes, and beside them one prompt for the peer (R6.D)."""
    schedule_recovery(desk, build, feedback, line)
    if build.has_prefill_progress:
        return
    schedule_decode_batch(desk, build, feedback, line)
    schedule_remote_prompt(desk, build, feedback, line)
    retract_and_grant(desk, build, feedback, line)


def schedule_prefills(desk: Desk, build: PlanBuild, feedback: AdmissionFeedback, line: Candidates) -> None:
    """A readmission, since its host pages could go; resident chunks; then new prompts, unless a readmission waits."""
    if schedule_readmission(desk, build, feedback, line) or schedule_resident_chunks(desk, build, feedback, line):
        return
    if not seals_newcomers(build, line):
        schedule_new_prompts(desk, build, feedback, line)
