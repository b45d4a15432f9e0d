"""What the stamp model says when a request runs alone, computed token by token without blocks or batches."""

from collections.abc import Iterable
from typing import Protocol

from control_plane.messages import Sampling
from data_plane.model.base import GroupLayout
from data_plane.model.stamp_options import STOP_TOKEN, StampOptions, group_layouts
from data_plane.model.stamp_rows import CHAIN, PLACE, group_origin, scrambled
from data_plane.model.stamp_sampling import seed_word, stop_threshold

_WORD = 2**64


def stamp_continuation(
    prompt: Iterable[int],
    count: int,
    *,
    options: StampOptions | None = None,
    sampling: Sampling | None = None,
    stop_token_ids: Iterable[int] = (),
) -> list[int]:
    """The `count` tokens after `prompt`, or fewer: the first of `stop_token_ids` is the last of them.

    Raises ConfigError for options that cannot be.
    """
    options = options or StampOptions()
    seed = seed_word(sampling or Sampling())
    stops = frozenset(stop_token_ids)
    groups = [_alone(index, layout) for index, layout in enumerate(group_layouts(options, 1))]
    known = [int(token) for token in prompt]
    fed = 0
    output: list[int] = []
    while len(output) < count:
        for position in range(fed, len(known)):
            for group in groups:
                group.feed(known[position], position)
        fed = len(known)
        token = _next_token([group.seen() for group in groups], seed, options)
        output.append(token)
        known.append(token)
        if token in stops:
            break
    return output


def _next_token(seen: list[int], seed: int, options: StampOptions) -> int:
    state = 0
    for word in [*seen, seed]:
        state = scrambled(state ^ word)
    if state >> 40 < stop_threshold(options):
        return STOP_TOKEN
    return 1 + (state & 0xFFFFFFFF) % (options.vocab_size - 1)


class _Alone(Protocol):
    """What one group remembers of one request."""

    def feed(self, token: int, position: int) -> None:
        """One more token."""
        ...

    def seen(self) -> int:
        """What the query at the last token sees."""
        ...


def _alone(index: int, layout: GroupLayout) -> _Alone:
    match layout.kind:
        case "full":
            return _FullHistory(index)
        case "sliding":
            return _Window(index, layout.window, is_chained=layout.window > 1 and not layout.replayable)
        case _:
            return _State(index)


def _continued(digest: int, origin: int, token: int, position: int) -> int:
    """The digest of a row after that of the row before it."""
    product = ((token | position << 32) + origin) * PLACE % _WORD
    return (digest * CHAIN + (product ^ (product >> 29))) % _WORD


def _weight(position: int) -> int:
    return scrambled(position) | 1


class _State:
    """The digest of all tokens."""

    def __init__(self, index: int) -> None:
        self._origin = group_origin(index)
        self._digest = self._origin

    def feed(self, token: int, position: int) -> None:
        self._digest = _continued(self._digest, self._origin, token, position)

    def seen(self) -> int:
        return self._digest


class _FullHistory(_State):
    """The sum of the weighted digests of all rows."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._sum = 0

    def feed(self, token: int, position: int) -> None:
        super().feed(token, position)
        self._sum += self._digest * _weight(position)

    def seen(self) -> int:
        return self._sum % _WORD


class _Window:
    """The sum of the weighted digests of the last rows."""

    def __init__(self, index: int, window: int, *, is_chained: bool) -> None:
        self._origin = group_origin(index)
        self._window = window
        self._is_chained = is_chained
        self._digests: list[int] = []

    def feed(self, token: int, position: int) -> None:
        continues = self._is_chained and position > 0
        previous = self._digests[position - 1] if continues else self._origin
        self._digests.append(_continued(previous, self._origin, token, position))

    def seen(self) -> int:
        begin = max(len(self._digests) - self._window, 0)
        return sum(self._digests[at] * _weight(at) for at in range(begin, len(self._digests))) % _WORD
