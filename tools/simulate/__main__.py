"""The command line of the simulation."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import count, takewhile

from tools.simulate.page import Page
from tools.simulate.report import failure_report, summary_line
from tools.simulate.run import Outcome, run, simulate
from tools.simulate.search import hush_devices, simulate_many
from tools.simulate.shrink import MOST_RUNS, shrink

EACH_ROUNDS = 400
SPARSE_AUDITS = 8
"""Moves between two audits of a long run. A seed that fails runs again with all of them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one seed; or from it on, so many rounds in all or for some minutes. 0 when nothing failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.simulate", description="Both planes in virtual time and bad weather."
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first of them")
    parser.add_argument("--each", type=int, default=EACH_ROUNDS, help="rounds of a seed, and then until all have ended")
    parser.add_argument("--rounds", type=int, help="go on with the seeds that follow until there were so many rounds")
    parser.add_argument("--minutes", type=float, help="go on with the seeds that follow for so long, on all cores")
    parser.add_argument("--workers", type=int, help="processes (1 with --rounds, else one a core)")
    parser.add_argument("--most-runs", type=int, default=MOST_RUNS, help="how often a failure is tried to be shrunk")
    options = parser.parse_args(arguments)
    hush_devices()
    is_long = options.rounds is not None or options.minutes is not None
    page = Page(options.seed, most_rounds=options.rounds)
    try:
        for outcome in _long(options, page) if is_long else [simulate(options.seed, rounds=options.each)]:
            page.add(outcome)
            if not is_long or options.rounds is None or outcome.failure is not None:
                print(summary_line(outcome), flush=True)
            if outcome.failure is not None:
                again = run(outcome.program)
                found = again if again.failure is not None else outcome
                print(failure_report(found, shrink(found, most_runs=options.most_runs)), flush=True)
            elif options.rounds is not None:
                print(page.progress_line(), end="\n" if page.is_due else "\r", flush=True)
    except KeyboardInterrupt:
        pass  # the page says with which seed to go on
    if is_long:
        print(page.text(), flush=True)
    return 1 if page.failed else 0


def _long(options: argparse.Namespace, page: Page) -> Iterator[Outcome]:
    """Seed after seed. Those that are running when there were enough rounds are run to their end."""
    seeds = takewhile(lambda _: not page.is_enough, count(options.seed))
    workers = options.workers or (1 if options.rounds is not None else os.cpu_count() or 1)
    if workers == 1 and options.minutes is None:
        return (simulate(seed, rounds=options.each, audits_every=SPARSE_AUDITS) for seed in seeds)
    return simulate_many(
        seeds,
        rounds=options.each,
        workers=workers,
        minutes=options.minutes,
        audits_every=SPARSE_AUDITS,
    )


if __name__ == "__main__":
    sys.exit(main())
