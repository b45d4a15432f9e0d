"""The last rounds: when each was planned and what was in it."""

from collections import deque
from typing import Final

import numpy as np
from msgspec import Struct

from control_plane.messages import ForwardBatch
from control_plane.messages.columns import view
from tokenspeed.observe.histogram import ROUND_TOKENS, Histogram

KEPT_ROUNDS: Final = 240


class RoundCard(Struct, frozen=True, gc=False):
    """One round that has work for the model. `at` is a moment of the watch's clock, in seconds."""

    round: int
    at: float
    prefill_rows: int
    decode_rows: int
    prefill_tokens: int
    decode_tokens: int


class RoundWatch:
    """Batches of the last rounds, and how many tokens rounds have fed."""

    def __init__(self) -> None:
        self.cards: deque[RoundCard] = deque(maxlen=KEPT_ROUNDS)
        self.tokens = Histogram(ROUND_TOKENS)

    def planned(self, number: int, forward: ForwardBatch, now: float) -> None:
        """A round was planned."""
        prefill_rows = forward.num_extends
        decode_rows = forward.row_count - prefill_rows
        prefill_tokens = 0
        if prefill_rows:
            prefill_tokens = int(np.add.reduce(view(forward.input_lengths)[:prefill_rows]))
        decode_tokens = decode_rows * forward.decode_width
        self.tokens.observe(prefill_tokens + decode_tokens)
        self.cards.append(RoundCard(number, now, prefill_rows, decode_rows, prefill_tokens, decode_tokens))
