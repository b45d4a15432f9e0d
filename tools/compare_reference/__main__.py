"""The command line of the comparison."""

import argparse
import sys
from collections.abc import Sequence

from control_plane.config import Role
from tools.compare_reference.compare import compare_many
from tools.compare_reference.draw import MIXES
from tools.compare_reference.page import Page, difference_report
from tools.compare_reference.their_rules import RULES


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare so many programs; 0 when none differs but in what a row of docs/differences.md tells."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare_reference", description=__doc__)
    parser.add_argument("--programs", type=int, default=1, help="how many; one is told in full")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--mix", choices=MIXES, help="one group a letter: full, sliding, replayable, m for state")
    parser.add_argument("--role", choices=[role.value for role in Role], help="one role")
    parser.add_argument("--width", type=int, help="one decode width")
    parser.add_argument("--pool", choices=["short", "roomy"], help="whether requests give way to each other")
    parser.add_argument("--host", choices=["yes", "no"], help="whether there is a host tier")
    parser.add_argument("--without", action="append", default=[], choices=list(RULES), help="keep our rule, by name")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    fixed = {
        "mix": options.mix,
        "role": Role(options.role) if options.role else None,
        "decode_width": options.width,
        "is_short": options.pool == "short" if options.pool else None,
        "has_host": options.host == "yes" if options.host else None,
    }
    fixed = {name: value for name, value in fixed.items() if value is not None}
    page = Page(options.programs)
    seeds = range(options.seed, options.seed + options.programs)
    for outcome in compare_many(seeds, fixed, options.without, workers=options.workers):
        page.add(outcome)
        if options.programs == 1 and (outcome.error or outcome.difference):
            print(difference_report(outcome))
        if page.is_due or sys.stdout.isatty():
            print(page.progress_line(), end="\n" if page.is_due else "\r", flush=True)
    print(page.text())
    return 1 if page.differing else 0


if __name__ == "__main__":
    sys.exit(main())
