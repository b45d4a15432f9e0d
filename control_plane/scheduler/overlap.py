"""What ends overlap for a request: the one registry of reasons.

A decode step is usually planned while the one before is out. A request with a reason below waits until its own results
have landed; all others go on overlapping.
"""

from enum import StrEnum

from control_plane.messages import Sampling


class NoOverlap(StrEnum):
    """Why a step of a request may be planned only when the token before it is known. The values are for people."""

    GRAMMAR = "a grammar decides what may follow each token"


def overlap_ends(sampling: Sampling) -> NoOverlap | None:
    """The reason why a request with this sampling does not overlap, if there is one."""
    if sampling.grammar:
        return NoOverlap.GRAMMAR
    return None
