"""Rules that a plan shows by itself, beside those of `PlanChecker`."""

from control_plane.config import Role
from control_plane.messages import ExecutionPlan, ForwardBatch, NoteKind, StoreSourceGuard
from control_plane.messages.columns import view
from tools.simulate.violation import require


def check_rules(plan: ExecutionPlan, role: Role) -> None:
    """Raise a Violation naming the rule that this plan of an engine of that role breaks."""
    retracts = any(note.kind is NoteKind.RETRACTED for note in plan.notes)
    require(not (retracts and role is Role.PREFILL), "R5.7", f"round {plan.round} of a prefilling engine retracts")
    restarted = [note.key for note in plan.notes if note.kind is NoteKind.RESTARTED]
    is_alone = plan.forward is not None and view(plan.forward.keys).tolist() == restarted
    may_restart = role is Role.PREFILL and is_alone
    require(may_restart or not restarted, "R5.7", f"round {plan.round} restarts {restarted}, not alone on role P")
    for store in plan.stores:
        is_ordered = store.guard is StoreSourceGuard.STREAM_ORDERED
        require(retracts or not is_ordered, "R5.3", f"round {plan.round} gives away what it stores and retracts nobody")
    if plan.forward is not None:
        _check_line(plan.round, plan.forward)


def _check_line(round_number: int, batch: ForwardBatch) -> None:
    """Nothing is prefilled behind a prefill that stays incomplete (rule 8.6)."""
    extends = slice(batch.num_extends)
    ends = view(batch.prefix_lengths)[extends] + view(batch.input_lengths)[extends]
    overtaken = (ends < view(batch.prefill_lengths))[:-1]
    require(not overtaken.any(), "R3.5", f"round {round_number} prefills behind an incomplete prefill")
