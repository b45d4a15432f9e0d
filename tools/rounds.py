"""Reads a recording aloud, a round a line: `python -m tools.rounds FILE`."""

import sys

from control_plane.rounds.told import told_rounds


def main() -> None:
    """Print every round of the recording that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.rounds FILE")
    for line in told_rounds(sys.argv[1]):
        print(line)


if __name__ == "__main__":
    main()
