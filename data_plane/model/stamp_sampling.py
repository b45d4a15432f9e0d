"""Which token comes next, given what each group's attention saw."""

import numpy as np

from control_plane.messages import Sampling
from control_plane.messages.columns import Int32s
from data_plane.model.stamp_options import STOP_TOKEN, StampOptions
from data_plane.model.stamp_rows import Words, scrambled, scrambled_array

_CHANCE_BITS = 24


def seed_word(sampling: Sampling) -> int:
    """What a request's sampling adds: its seed if it draws, nothing if it is greedy."""
    return scrambled(sampling.seed % 2**64) if sampling.temperature > 0 else 0


def next_tokens(seen: list[Words], seeds: Words, options: StampOptions) -> Int32s:
    """One token a row. `seen` has an array a group, with one entry a row; `seeds` is `seed_word` of each row."""
    state = np.zeros(len(seeds), dtype=np.uint64)
    for group_seen in seen:
        state = scrambled_array(state ^ group_seen)
    state = scrambled_array(state ^ seeds)
    ordinary = (state & np.uint64(0xFFFFFFFF)) % np.uint64(options.vocab_size - 1) + np.uint64(1)
    stops = (state >> np.uint64(64 - _CHANCE_BITS)) < np.uint64(stop_threshold(options))
    return np.where(stops, np.uint64(STOP_TOKEN), ordinary).astype(np.int32)


def stop_threshold(options: StampOptions) -> int:
    """The stop token comes when the top bits of the state are below this."""
    return int(options.stop_probability * (1 << _CHANCE_BITS))
