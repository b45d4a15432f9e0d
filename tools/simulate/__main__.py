"""The command line of the simulation."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import count

from tools.simulate.report import failure_report, summary_line
from tools.simulate.run import Outcome, simulate
from tools.simulate.search import hush_devices, simulate_many
from tools.simulate.shrink import MOST_RUNS, shrink


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one seed, or from it on for some minutes; 0 when nothing failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulate", description="Both planes in virtual time and bad weather."
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first of them")
    parser.add_argument("--rounds", type=int, default=400, help="rounds of each seed, and then until all have ended")
    parser.add_argument("--minutes", type=float, help="run this seed and those after it on all cores for so long")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes, with --minutes")
    parser.add_argument("--most-runs", type=int, default=MOST_RUNS, help="how often a failure is tried to be shrunk")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    hush_devices()
    outcomes: Iterable[Outcome]
    if options.minutes is None:
        outcomes = [simulate(options.seed, rounds=options.rounds)]
    else:
        seeds = count(options.seed)
        outcomes = simulate_many(seeds, rounds=options.rounds, workers=options.workers, minutes=options.minutes)
    failed = 0
    for outcome in outcomes:
        print(summary_line(outcome), flush=True)
        if outcome.failure is not None:
            failed += 1
            print(failure_report(outcome, shrink(outcome, most_runs=options.most_runs)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
