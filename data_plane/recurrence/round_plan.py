"""Which snapshots one round reads and writes, computed once and used by every recurrent layer."""

import numpy as np
import torch
from msgspec import Struct

from control_plane.messages.columns import Int32s
from data_plane.attention.ship import ship
from data_plane.batch.rows import Rows


class Scan(Struct, frozen=True):
    """Packed tokens [begin, end) that end in a snapshot, written into block `target` (int64 [1])."""

    begin: int
    end: int
    target: torch.Tensor


class ExtendScan(Struct, frozen=True):
    """One extend: from the snapshot in block `source` (int64 [1]; None: the empty state) through its scans, in order.

    There are two scans when a checkpoint lies inside the fed tokens: the body up to it, then the rest.
    """

    source: torch.Tensor | None
    scans: tuple[Scan, ...]


class DecodeStep(Struct, frozen=True):
    """All decodes: packed tokens [begin, end), one a row; blocks to read and to write, int64 [rows]."""

    begin: int
    end: int
    sources: torch.Tensor
    targets: torch.Tensor


class StatePlan:
    """One batch over the block table of a state group (int32 [slots, blocks]; `block_granularity` tokens a column).

    The snapshot after T tokens is in column (T - 1) // block_granularity. Blocks are looked up on the device;
    lengths are the host's, so nothing here waits for the device.
    """

    def __init__(self, rows: Rows, table: torch.Tensor, *, block_granularity: int) -> None:
        assert not rows.replay_lengths.any(), "tokens to replay beside a state group, which could not forget them again"
        extends, checkpoints = rows.num_extends, rows.checkpoints
        begins, ends = rows.prefix_lengths, rows.ends
        _check(checkpoints, begins[:extends], ends[:extends])
        columns = [_columns(tokens, block_granularity) for tokens in (begins, ends, checkpoints)]
        slots, read, written, kept = ship([rows.slots, *columns], table.device)
        # One row of each is looked up for every row of the batch; what a row does not need is not used.
        sources, targets = table[slots, read].long(), table[slots, written].long()
        middles = table[slots[:extends], kept].long()
        starts = np.concatenate([[0], np.cumsum(rows.input_lengths)]).tolist()
        self.extends = tuple(
            ExtendScan(
                sources[row : row + 1] if begins[row] else None,
                _scans(
                    starts[row],
                    starts[row] + int(checkpoints[row] - begins[row]) if checkpoints[row] else None,
                    starts[row + 1],
                    middles[row : row + 1],
                    targets[row : row + 1],
                ),
            )
            for row in range(extends)
        )
        self.decodes = DecodeStep(starts[extends], starts[-1], sources[extends:], targets[extends:])


def _check(checkpoints: Int32s, begins: Int32s, ends: Int32s) -> None:
    inside = (checkpoints == 0) | ((begins < checkpoints) & (checkpoints < ends))
    assert inside.all(), f"checkpoints {checkpoints[~inside]} outside of [{begins[~inside]}, {ends[~inside]})"


def _columns(tokens: Int32s, block_granularity: int) -> Int32s:
    """Where the snapshot after so many tokens stands; column 0 for the empty state, which has none."""
    return np.maximum(tokens - 1, 0) // np.int32(block_granularity)


def _scans(
    begin: int, checkpoint: int | None, end: int, middle: torch.Tensor, target: torch.Tensor
) -> tuple[Scan, ...]:
    if checkpoint is None:
        return (Scan(begin, end, target),)
    return (Scan(begin, checkpoint, middle), Scan(checkpoint, end, target))
