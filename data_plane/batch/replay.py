"""A batch taken apart: tokens that are fed again for replayable groups, and tokens that every group computes."""

import numpy as np

from control_plane.messages import ForwardBatch
from control_plane.messages.columns import Int32s, pack
from data_plane.batch.rows import Rows


def split_replay(rows: Rows) -> tuple[Rows | None, Rows]:
    """The replayed rows if there are any, and the computed ones.

    The replayed ones are extends over positions [prefix, prefix + replay); the computed ones are `rows` from there
    on. Where nothing is replayed the latter are `rows` itself.
    """
    extends, replay = rows.num_extends, rows.replay_lengths
    if not replay.any():
        return None, rows
    assert (replay < rows.input_lengths[:extends]).all(), "a row that only replays"
    fed = np.split(rows.input_ids, np.cumsum(rows.input_lengths[: extends - 1]))
    again = np.flatnonzero(replay).astype(np.int32)
    replayed = _batch(
        rows,
        again,
        extends=len(again),
        prefixes=rows.prefix_lengths[again],
        lengths=replay[again],
        ids=[fed[row][: replay[row]] for row in again],
    )
    skipped = np.zeros(rows.count, dtype=np.int32)
    skipped[:extends] = replay
    computed = _batch(
        rows,
        np.arange(rows.count, dtype=np.int32),
        extends=extends,
        prefixes=rows.prefix_lengths + skipped,
        lengths=rows.input_lengths - skipped,
        ids=[tokens[count:] for tokens, count in zip(fed, replay, strict=True)],
    )
    return replayed, computed


def _batch(rows: Rows, chosen: Int32s, *, extends: int, prefixes: Int32s, lengths: Int32s, ids: list[Int32s]) -> Rows:
    """The `chosen` rows with other positions. What they replay is settled: none of them replays."""
    part = Rows(
        ForwardBatch(
            keys=pack(rows.keys[chosen]),
            slots=pack(rows.slots[chosen]),
            num_extends=extends,
            input_lengths=pack(lengths),
            prefix_lengths=pack(prefixes),
            prefill_lengths=pack(rows.prefill_lengths[chosen[:extends]]),
            replay_lengths=pack(np.zeros(extends, dtype=np.int32)),
            checkpoints=pack(rows.checkpoints[chosen[:extends]]),
            input_ids=pack(np.concatenate(ids)),
            decode_width=rows.decode_width,
        )
    )
    part.lost = rows.lost[chosen]
    return part
