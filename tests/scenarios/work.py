"""What is to be read and written, as plans say it."""

from collections.abc import Iterator

from msgspec import Struct

from control_plane import CacheGroupConfig
from control_plane.messages import ForwardBatch, RemoteWork
from control_plane.messages.columns import view


class Work(Struct, frozen=True):
    """Rows that somebody writes: tokens `[begin, end)` of a request, of replayable groups those from `replay_from`."""

    key: int
    slot: int
    begin: int
    end: int
    replay_from: int
    checkpoint: int = 0

    def first(self, spec: CacheGroupConfig) -> int:
        """The first token whose row is written in a group."""
        return self.replay_from if spec.replayable else self.begin


def rows_of(batch: ForwardBatch | None) -> Iterator[Work]:
    """What each request of a forward reads up to, and writes."""
    if batch is None:
        return
    columns = (batch.keys, batch.slots, batch.prefix_lengths, batch.input_lengths)
    replays, checkpoints = view(batch.replay_lengths).tolist(), view(batch.checkpoints).tolist()
    decodes = [0] * (batch.row_count - batch.num_extends)
    rows = zip(*(view(c).tolist() for c in columns), replays + decodes, checkpoints + decodes, strict=True)
    for key, slot, first, length, replay, checkpoint in rows:
        yield Work(key, slot, first + replay, first + length, first, checkpoint)


def transfers_of(work: RemoteWork | None) -> Iterator[tuple[Work, int]]:
    """What a peer writes or reads of each request, with the attempt. It sends whole windows: nothing is fed again."""
    if work is None:
        return
    columns = (work.keys, work.slots, work.begins, work.ends, work.attempts)
    for key, slot, begin, end, attempt in zip(*(view(c).tolist() for c in columns), strict=True):
        yield Work(key, slot, begin, end, 0), attempt
