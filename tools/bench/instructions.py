"""`python -m tools.bench instructions`: processor instructions a round, counted by valgrind.

Timings on a shared machine drift by tens of percent; a count is the same on every run. A run of few rounds is taken
from a run of many: what is left is the rounds' own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tools.bench.figures import markdown_table
from tools.bench.lanes import LocalLane
from tools.bench.workloads import Case, decode_cases

FEW_ROUNDS, MORE_ROUNDS = 64, 64  # a page of decode steps: every row crosses one page boundary
COUNTED = ((1, 1024), (32, 1024), (256, 1024), (256, 8192))
OURS_AND_THEIRS = ("tokenspeed", "tokenspeed, embedded", "tokenspeed-scheduler")
TOTAL = re.compile(rb"Collected : (\d+)|I\s+refs:\s+([\d,]+)")


@dataclass(frozen=True)
class Counted:
    """Instructions of one round, on average over a page of decode steps, for each scheduler."""

    batch: int
    context: int
    instructions: dict[str, float]


def count_instructions(cases: Sequence[tuple[int, int]], names: Sequence[str]) -> list[Counted]:
    """Each case (batch, context) on each scheduler of these names. Raises RuntimeError without valgrind."""
    if shutil.which("valgrind") is None:
        raise RuntimeError("valgrind is not installed: it does the counting")
    found = []
    for batch, context in cases:
        of_case = {}
        for name in names:
            few = _instructions(name, batch, context, FEW_ROUNDS)
            many = _instructions(name, batch, context, FEW_ROUNDS + MORE_ROUNDS)
            of_case[name] = (many - few) / MORE_ROUNDS
            print(f"{name}: {batch} x {context}: {of_case[name]:.0f} instructions a round", flush=True)
        found.append(Counted(batch, context, of_case))
    return found


def describe_instructions(counted: Sequence[Counted]) -> str:
    """One row a case."""
    ours, *others = counted[0].instructions
    head = ["case, pages of 64", f"{ours}, thousands"]
    for other in others:
        head += [f"{other}, thousands", "ours over it"]
    rows = []
    for each in counted:
        figures = each.instructions
        row = [f"{each.batch} x {each.context}", f"{figures[ours] / 1000:.1f}"]
        for other in others:
            row += [f"{figures[other] / 1000:.1f}", f"{figures[ours] / figures[other]:.3f}"]
        rows.append(row)
    return markdown_table(head, rows)


def _instructions(name: str, batch: int, context: int, rounds: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m", __spec__.name]
    finished = subprocess.run(
        [*command, name, str(batch), str(context), str(rounds)],
        env={**os.environ, "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    total = TOTAL.search(finished.stderr)
    if finished.returncode or total is None:
        raise RuntimeError(f"valgrind counted nothing: {finished.stderr.decode()[-500:]}")
    return int((total[1] or total[2]).replace(b",", b""))


def main(arguments: Sequence[str] | None = None) -> None:
    """Reach the case's decode and do so many rounds of it."""
    from tools.bench.ours import EmbeddedScheduler, OurScheduler
    from tools.bench.reference import ReferenceScheduler

    makers = {made.name: made for made in (OurScheduler, EmbeddedScheduler, ReferenceScheduler)}
    parser = argparse.ArgumentParser(prog="python -m tools.bench.instructions")
    parser.add_argument("name", choices=list(makers))
    parser.add_argument("batch", type=int)
    parser.add_argument("context", type=int)
    parser.add_argument("rounds", type=int)
    options = parser.parse_args(arguments)
    lane = LocalLane(makers[options.name], options.name)
    case = _case(options.batch, options.context)
    lane.reach_decoding(case)
    lane.rounds(case, options.rounds)


def _case(batch: int, context: int) -> Case:
    return next(case for case in decode_cases() if (case.batch, case.context, case.granularity) == (batch, context, 64))


if __name__ == "__main__":
    main()
