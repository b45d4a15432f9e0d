"""Draws the state machine of a request from its arrows: `python -m tools.fsm [FILE]`, as a Mermaid diagram."""

import sys
from pathlib import Path

from control_plane.fsm.arrows import ARROWS
from control_plane.fsm.states import Bootstrapping, Finished, Submitted


def draw() -> str:
    """The diagram, the same text for the same machine. Moves that share both ends share a line."""
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, event), arrow in ARROWS.items():
        for successor in arrow.successors:
            moves.setdefault((state.__name__, successor.__name__), []).append(event.__name__)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Submitted.__name__}"]
    lines.append(f"    [*] --> {Bootstrapping.__name__}")
    lines += [f"    {source} --> {target}: {', '.join(events)}" for (source, target), events in moves.items()]
    lines += [f"    {Finished.__name__} --> [*]", "```", ""]
    return "\n".join(lines)


def main() -> None:
    """Print the diagram, or write it to the file that is named."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("# The life of a request\n\nDrawn by `python -m tools.fsm`.\n\n" + draw())
    else:
        print(draw(), end="")


if __name__ == "__main__":
    main()
