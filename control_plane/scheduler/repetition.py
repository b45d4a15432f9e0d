"""Rounds in which nothing happens but one more token a row: their plan is the last one, counted on.

A round of the whole decode line and nothing else changed nothing that a phase looks at. So as long as nothing was
submitted, nothing but its results was reported and no row needs a look, the phases would come to the same again.
"""

from control_plane.messages import ExecutionPlan, Note, NoteKind
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.plan_build import decode_batch
from control_plane.scheduler.resident import ResidentTable

# What is said again in every round until something happens.
STANDING_NOTES = (NoteKind.NO_SLOT, NoteKind.AWAITS_RECOVERY, NoteKind.AWAITS_STORE)


class Repetition:
    """Whether the next round repeats the last one, and its plan if so."""

    def __init__(self, resident: ResidentTable, line: Candidates, *, decode_width: int) -> None:
        self._resident = resident
        self._line = line
        self._decode_width = decode_width
        self._is_at_rest = False
        self._notes: tuple[Note, ...] = ()

    def something_happened(self) -> None:
        """The phases must look again."""
        self._is_at_rest = False

    def planned(self, plan: ExecutionPlan) -> None:
        """The phases made this plan."""
        self._is_at_rest = self._repeats(plan)
        # Where everybody decodes, the notes are about rows that were looked at.
        self._notes = () if self._line.only_decodes else plan.notes

    def next_plan(self, round_number: int) -> ExecutionPlan | None:
        """The plan of a round in which only counters change; None: the phases must look."""
        run = self._resident.run
        if not self._is_at_rest or run is None or not run.just_goes_on:
            return None
        batch = decode_batch(run.step(), self._decode_width)
        return ExecutionPlan(round_number, (), (), (), (), (), None, None, batch, self._notes)

    def _repeats(self, plan: ExecutionPlan) -> bool:
        """If a row was looked at, blocks or cached pages may have changed: that matters if others wait for them."""
        run, batch = self._resident.run, plan.forward
        if run is None or batch is None or batch.keys != run.packed_keys:
            return False
        if self._line.only_decodes:
            return True
        says_no_more = not (plan.stores or plan.zero or plan.load_backs or plan.tables or plan.bindings)
        has_no_peer = plan.remote_prefill is None and plan.remote_decode is None
        has_standing_notes = all(note.kind in STANDING_NOTES for note in plan.notes)
        return says_no_more and has_no_peer and has_standing_notes and not run.has_just_looked
