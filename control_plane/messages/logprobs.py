"""Log probabilities of sampled tokens, by row."""

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from control_plane.messages.columns import view
from control_plane.messages.events import TokenLogprobs

FLOAT32 = np.dtype("<f4")

Float32s = npt.NDArray[np.float32]


class TokenLogprob(Struct, frozen=True, gc=False):
    """One token that was sampled, its log probability, and (token, log probability) of the likeliest ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs_by_row(event: TokenLogprobs) -> dict[int, TokenLogprob]:
    """What an event says of each of its rows."""
    tokens = view(event.tokens).tolist()
    values = np.frombuffer(event.values, dtype=FLOAT32).tolist()
    found: dict[int, TokenLogprob] = {}
    begin = 0
    for row, count in zip(view(event.rows).tolist(), view(event.counts).tolist(), strict=True):
        end = begin + count
        top = tuple(zip(tokens[begin + 1 : end], values[begin + 1 : end], strict=True))
        found[row] = TokenLogprob(tokens[begin], values[begin], top)
        begin = end
    return found
