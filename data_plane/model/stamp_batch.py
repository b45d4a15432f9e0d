"""A batch as a stamp group sees it: runs of rows, one run a request."""

from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from control_plane.messages.columns import Int32s

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Fed:
    """Run i feeds `lengths[i]` of `tokens` at the positions from `begins[i]` on, for the request in `slots[i]`.

    `checkpoints[i]`, if it is not 0, is a position inside the run: the state after so many tokens is wanted too.
    """

    def __init__(self, *, slots: Int32s, begins: Int32s, lengths: Int32s, tokens: Int32s, checkpoints: Int32s) -> None:
        self.slots = slots
        self.begins = begins
        self.lengths = lengths
        self.tokens = tokens
        self.checkpoints = checkpoints

    @cached_property
    def ends(self) -> Ints:
        """Position after the last token of each run."""
        return (self.begins + self.lengths).astype(np.int64)

    @cached_property
    def starts(self) -> Ints:
        """Index in `tokens` of each run's first."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    @cached_property
    def runs(self) -> Ints:
        """For each token its run."""
        return np.repeat(np.arange(len(self.slots)), self.lengths)

    @cached_property
    def positions(self) -> Ints:
        """For each token its position."""
        return np.arange(len(self.tokens)) + np.repeat(self.begins - self.starts, self.lengths)

    def only(self, chosen: Bools) -> Self:
        """These runs without the others."""
        return type(self)(
            slots=self.slots[chosen],
            begins=self.begins[chosen],
            lengths=self.lengths[chosen],
            tokens=self.tokens[chosen[self.runs]],
            checkpoints=self.checkpoints[chosen],
        )

    def without_first(self, counts: Int32s) -> Self:
        """The same runs, each without so many of its first tokens (fewer than it has)."""
        kept = self.positions >= (self.begins + counts)[self.runs]
        return type(self)(
            slots=self.slots,
            begins=self.begins + counts,
            lengths=self.lengths - counts,
            tokens=self.tokens[kept],
            checkpoints=self.checkpoints,
        )
