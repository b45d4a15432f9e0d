"""A decoded batch as numpy columns, with the few that every model derives from them."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from control_plane.messages import ForwardBatch
from control_plane.messages.columns import Int32s, view


class RowLogprobs(Struct, frozen=True):
    """Log probabilities of some rows of a batch: the columns of a `TokenLogprobs` event."""

    rows: bytes
    counts: bytes
    tokens: bytes
    values: bytes


class Rows:
    """Read-only columns over a `ForwardBatch` (see there), one entry a row unless it says otherwise.

    Extends come first (`num_extends` of them), then decodes. `prefill_lengths`, `replay_lengths` and
    `checkpoints` have one entry an extend; `input_ids` holds the extends' tokens one after the other.

    `lost` marks the rows of requests whose earlier round failed while this one was planned: what they read may
    never have been written, and nobody takes their result. The executor sets it; a model may compute anything there.

    `read_logprobs` is set by a model when a row asked for log probabilities: it gives them once the round is done.
    """

    def __init__(self, batch: ForwardBatch) -> None:
        self.num_extends = batch.num_extends
        self.decode_width = batch.decode_width
        self.keys: Int32s = view(batch.keys)
        self.slots: Int32s = view(batch.slots)
        self.input_lengths: Int32s = view(batch.input_lengths)
        self.prefix_lengths: Int32s = view(batch.prefix_lengths)
        self.prefill_lengths: Int32s = view(batch.prefill_lengths)
        self.replay_lengths: Int32s = view(batch.replay_lengths)
        self.checkpoints: Int32s = view(batch.checkpoints)
        self.input_ids: Int32s = view(batch.input_ids)
        self.read_logprobs: Callable[[], RowLogprobs] | None = None
        self.lost: npt.NDArray[np.bool_] = np.zeros(len(self.keys), dtype=np.bool_)

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.keys)

    @cached_property
    def ends(self) -> Int32s:
        """Position after the last token fed."""
        return self.prefix_lengths + self.input_lengths

    @cached_property
    def samples(self) -> npt.NDArray[np.bool_]:
        """Which rows sample: every decode, and the extends that reach the end of what must be prefilled."""
        mask = np.ones(self.count, dtype=np.bool_)
        mask[: self.num_extends] = self.ends[: self.num_extends] >= self.prefill_lengths
        return mask
