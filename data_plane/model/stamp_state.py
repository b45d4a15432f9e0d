"""A group of recurrent state in the stamp model: a block holds one snapshot of all the tokens before it.

A snapshot is a row: how many tokens it is after, the digest that chains all of them, and a seal of both that no other
group gives. The state after T tokens stands in table row `(T - 1) // block_granularity`.
"""

from typing import Any

import numpy as np

from control_plane.messages.columns import Int32s
from data_plane.model.stamp_batch import Bools, Fed, Ints
from data_plane.model.stamp_group import StampFault, StampGroup
from data_plane.model.stamp_rows import Words, mixed, places, positions_of, scrambled_array


class StateGroup(StampGroup):
    """Reads one snapshot a run, and writes one or two."""

    def write(self, fed: Fed) -> None:
        """Advance each run's state over its tokens; keep the one after them and, if asked, the one at the checkpoint.

        Raises StampFault when a checkpoint is not inside its run.
        """
        self._check_reach(fed)
        marked = np.flatnonzero(fed.checkpoints)
        outside = (fed.checkpoints[marked] <= fed.begins[marked]) | (fed.checkpoints[marked] >= fed.ends[marked])
        if outside.any():
            run = int(marked[np.argmax(outside)])
            raise StampFault(
                f"{self._at(fed.slots[run], fed.checkpoints[run])}: the checkpoint must be after {fed.begins[run]} "
                f"and before {fed.ends[run]}, where the run begins and ends"
            )
        added = mixed(places(fed.tokens, fed.positions), self._origin)
        digests = self._chain.digests(added, self._input_digests(fed), fed.lengths)
        runs = np.concatenate([np.arange(len(fed.slots)), marked])
        lengths = np.concatenate([fed.ends, fed.checkpoints[marked]])
        kept = digests[fed.starts[runs] + lengths - fed.begins[runs] - 1]
        self._keep(fed, runs, lengths, kept)
        self._remember(fed, kept[: len(fed.slots)])

    def read(self, fed: Fed) -> Words:
        """The digest of the state after each run, read back through the table."""
        blocks, snapshots = self._snapshots(fed.slots, fed.ends)
        digests = snapshots[:, 1]
        wrong = self._is_not_after(snapshots, fed.ends) | (digests != self._digests[fed.slots])
        self._suspect(fed, wrong, lambda run: self._fault(fed.slots, fed.ends, blocks, snapshots, run))
        return self._doubted(fed, digests)

    def _input_digests(self, fed: Fed) -> Words:
        """The digest that each run goes on from: that of the snapshot where it begins, or of no tokens at all."""
        blocks, snapshots = self._snapshots(fed.slots, fed.begins)
        digests = snapshots[:, 1]
        has_input = fed.begins > 0
        wrong = has_input & (self._is_not_after(snapshots, fed.begins) | self._is_unlike(fed, digests))
        self._suspect(fed, wrong, lambda run: self._fault(fed.slots, fed.begins, blocks, snapshots, run))
        return np.where(has_input, digests, self._origin)

    def _keep(self, fed: Fed, runs: Ints, lengths: Ints, digests: Words) -> None:
        """Write the snapshots after `lengths` tokens of `runs`. Only the input of a run may be written over by it."""
        slots = fed.slots[runs]
        columns = (lengths - 1) // self._granularity
        blocks = self._table[slots, columns]
        self._check_not_null(blocks, slots, lengths)
        if self._strict:
            self._check_single_writers(blocks, np.arange(len(runs)), slots, lengths)
            # The input of such a run lies inside the block, so it is no boundary that others could share.
            in_place = columns == (fed.begins[runs] - 1) // self._granularity
            dirty = self._rows[blocks, 0].any(axis=1) & ~in_place
            if dirty.any():
                at = int(np.argmax(dirty))
                found = _found(self._rows[blocks[at], 0], lengths[at])
                raise StampFault(
                    f"{self._at(slots[at], lengths[at])}: block {blocks[at]} is not clean where the state after "
                    f"{lengths[at]} tokens is written, it holds {found}: not zeroed, shared, or another's"
                )
        self._rows[blocks, 0, 0] = self._sealed(digests, lengths)
        self._rows[blocks, 0, 1] = digests

    def _snapshots(self, slots: Int32s, lengths: Any) -> tuple[Int32s, Words]:
        """The block that should hold the state after so many tokens, and its row [runs, 2]; anything for none."""
        blocks = self._table[slots, np.maximum(lengths - 1, 0) // self._granularity]
        return blocks, self._rows[blocks, 0]

    def _is_not_after(self, snapshots: Words, lengths: Any) -> Bools:
        """Whether each is not a snapshot of this group after so many tokens."""
        differs: Bools = snapshots[:, 0] != self._sealed(snapshots[:, 1], lengths)
        return differs

    def _sealed(self, digests: Words, lengths: Any) -> Words:
        """The length of each snapshot, and its seal where other rows have their token, in one word."""
        seals = scrambled_array((digests ^ self._origin) + lengths.astype(np.uint64))
        return places(seals, lengths)

    def _fault(self, slots: Int32s, lengths: Any, blocks: Int32s, snapshots: Words, run: int) -> str:
        where, block = self._at(slots[run], lengths[run]), int(blocks[run])
        if not block:
            return f"{where}: expected a snapshot, found a hole"
        found = _found(snapshots[run], lengths[run])
        return (
            f"{where}: expected the state after {lengths[run]} tokens, found {found} in block {block}: "
            f"stale, zeroed, or another's"
        )


def _found(snapshot: Words, expected: int) -> str:
    after = int(positions_of(snapshot[:1])[0])
    if not snapshot.any():
        return "no state"
    return f"{'another' if after == expected else 'the'} state after {after} tokens"
