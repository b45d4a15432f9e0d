"""The command line of the fences' table."""

import sys

from tools.fences.table import NOT_HERE, rows
from tools.simulate.search import hush_devices


def main() -> int:
    """Print the table: 0 if each fence that is taken away is found missing."""
    hush_devices()
    silent = count = 0
    for row in rows():
        count += 1
        silent += row.means is None
        print(f"{row.fence}, met {row.met} times")
        found = "NOT FOUND" if row.means is None else f"{row.means}, in {row.program!r}: {row.said}"
        print(f"    {found}", flush=True)
    for fence, reason in NOT_HERE.items():
        print(f"{fence}, not met\n    {reason}")
    print(f"{count} fences met, {silent} not found missing; {len(NOT_HERE)} are not met here")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
