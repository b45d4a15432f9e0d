"""What the stamp model says when a request runs alone, computed token by token without blocks or batches."""

from collections.abc import Iterable

from control_plane.messages import Sampling
from data_plane.model.stamp_rows import CHAIN, PLACE, group_origin, scrambled
from data_plane.model.stamp_sampling import STOP_TOKEN, StampOptions, seed_word, stop_threshold

_WORD = 2**64


def stamp_continuation(
    prompt: Iterable[int],
    count: int,
    *,
    options: StampOptions | None = None,
    sampling: Sampling | None = None,
    stop_token_ids: Iterable[int] = (),
) -> list[int]:
    """The `count` tokens after `prompt`, or fewer: the first of `stop_token_ids` is the last of them."""
    options = options or StampOptions()
    seed = seed_word(sampling or Sampling())
    stops = frozenset(stop_token_ids)
    alone = _Alone(options)
    for token in prompt:
        alone.feed(int(token))
    output: list[int] = []
    while len(output) < count:
        token = alone.next_token(seed)
        output.append(token)
        if token in stops:
            break
        alone.feed(token)
    return output


class _Alone:
    """One request: each group's chain, and the weighted sum of it that full history sees."""

    def __init__(self, options: StampOptions) -> None:
        assert set(options.group_kinds) == {"full"}, "the oracle knows full history only"
        self._options = options
        self._digests = [group_origin(group) for group in range(len(options.group_kinds))]
        self._sums = [0] * len(self._digests)
        self._length = 0

    def feed(self, token: int) -> None:
        """One more row in every group."""
        position = self._length
        product = (token | position << 32) * PLACE % _WORD
        added = product ^ (product >> 29)
        weight = scrambled(position) | 1
        for group, digest in enumerate(self._digests):
            digest = (digest * CHAIN + added) % _WORD
            self._digests[group] = digest
            self._sums[group] = (self._sums[group] + digest * weight) % _WORD
        self._length += 1

    def next_token(self, seed: int) -> int:
        """The token after all that was fed."""
        state = 0
        for seen in self._sums:
            state = scrambled(state ^ seen)
        state = scrambled(state ^ seed)
        if state >> 40 < stop_threshold(self._options):
            return STOP_TOKEN
        return 1 + (state & 0xFFFFFFFF) % (self._options.vocab_size - 1)
