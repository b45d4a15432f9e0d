"""Two recordings side by side: settings, the first plan that differs, numbers."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct

from control_plane.messages import ExecutionPlan
from control_plane.rounds.replay import Difference, differing_fields
from control_plane.rounds.steps import Planned, Recording
from tokenspeed.trace.numbers import Numbers, Spread


class Comparison(Struct, frozen=True):
    """What differs. `settings` are (field, one's, the other's); `first` is None when every plan is the same."""

    settings: tuple[tuple[str, str, str], ...]
    first: Difference | None
    plans: int


def compare(one: Recording, other: Recording) -> Comparison:
    """Plan by plan, up to the first that differs."""
    ours, theirs = msgspec.to_builtins(one.header.config), msgspec.to_builtins(other.header.config)
    names = dict.fromkeys([*ours, *theirs])
    settings = tuple(
        (name, str(ours.get(name)), str(theirs.get(name))) for name in names if ours.get(name) != theirs.get(name)
    )
    plans = 0
    for before, after in zip_longest(_plans(one), _plans(other)):
        if before is None or after is None:
            longer = before or after
            assert longer is not None
            missing = ("(the recording)", "goes on" if before else "ends", "goes on" if after else "ends")
            return Comparison(settings, Difference(longer.round, plans, (missing,)), plans)
        if before != after:
            return Comparison(settings, Difference(before.round, plans, differing_fields(before, after)), plans)
        plans += 1
    return Comparison(settings, None, plans)


def side_by_side(columns: list[tuple[str, Numbers]]) -> list[tuple[str, ...]]:
    """A row a number: its name, its value in every column, and how far the last is from the first."""
    rows: list[tuple[str, ...]] = [("", *(name for name, _ in columns), "change")]
    for name in Numbers.__struct_fields__:
        values = [getattr(numbers, name) for _, numbers in columns]
        present = next((value for value in values if value is not None), None)
        parts = ("mean", "p50", "p90", "p99", "max") if isinstance(present, Spread) else (None,)
        for part in parts:
            shown = [getattr(value, part, None) if part else value for value in values]
            label = f"{name} {part}" if part else name
            rows.append((label, *(_shown(name, value) for value in shown), _change(shown[0], shown[-1])))
    return rows


def aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as lines of text: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _plans(recording: Recording) -> Iterator[ExecutionPlan]:
    return (step.plan for step in recording if isinstance(step, Planned))


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.startswith(("hit_rate", "pool_")):
        return f"{100 * value:.2f} %"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _change(first: Any, last: Any) -> str:
    if first is None or last is None or first == last:
        return ""
    return f"x{last / first:.2f}" if first else "new"
