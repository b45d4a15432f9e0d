"""Who holds how many blocks of which group, by the table edits of the plans."""

from collections.abc import Sequence

from control_plane.config import CacheGroupConfig
from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import view

UNKNOWN = 0


class Holdings:
    """The tables of every slot as the data plane keeps them, counted. Blocks that are shared count for each holder."""

    def __init__(self, groups: Sequence[CacheGroupConfig]) -> None:
        self._rows: list[dict[int, dict[int, int]]] = [{} for _ in groups]  # by group: slot -> row -> block
        self.owner_of_slot: dict[int, int] = {}

    def planned(self, plan: ExecutionPlan) -> None:
        """Follow the edits of a plan, and who owns the slots from then on."""
        for edit in plan.tables:
            rows = self._rows[edit.group].setdefault(edit.slot, {})
            blocks = view(edit.blocks)
            if not len(blocks):
                for row in [row for row in rows if row >= edit.first]:
                    del rows[row]
                continue
            for row, block in zip(range(edit.first, edit.first + len(blocks)), blocks.tolist(), strict=True):
                if block:
                    rows[row] = block
                else:
                    rows.pop(row, None)
        for binding in plan.bindings:
            self.owner_of_slot[binding.slot] = binding.key

    def holders(self, group: int) -> list[tuple[int, int]]:
        """(key, blocks) of every slot that holds any of a group, those with most first."""
        held = [(self.owner_of_slot.get(slot, UNKNOWN), len(rows)) for slot, rows in self._rows[group].items() if rows]
        return sorted(held, key=lambda entry: (-entry[1], entry[0]))
