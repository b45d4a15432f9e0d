"""From results to outputs: who gets which tokens, and who is done."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from control_plane.messages import (
    Event,
    ExtendResult,
    Finish,
    FinishReason,
    RemotePrefillDone,
    TokenLogprob,
    TokenLogprobs,
)
from control_plane.messages.columns import view
from control_plane.messages.logprobs import logprobs_by_row


class Committed(Struct, frozen=True):
    """Tokens for one request, and its end if this is it. `logprobs` has an entry a token, or none if nobody asked."""

    key: int
    tokens: list[int]
    reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()


class StopRule:
    """When one request is done: at one of its stop tokens, or when it made all the tokens it may."""

    __slots__ = ("left_tokens", "stop_token_ids")

    def __init__(self, *, stop_token_ids: Sequence[int], max_new_tokens: int) -> None:
        self.stop_token_ids = frozenset(stop_token_ids)
        self.left_tokens = max_new_tokens

    def cut(self, tokens: list[int]) -> tuple[list[int], FinishReason | None]:
        """The tokens that count, the stop token included, and the reason if the request is done with them."""
        for index, token in enumerate(tokens):
            self.left_tokens -= 1
            if token in self.stop_token_ids:
                return tokens[: index + 1], FinishReason.STOP
            if not self.left_tokens:
                return tokens[: index + 1], FinishReason.LENGTH
        return tokens, None


class StopRules:
    """Stop rules of live requests by key. Whoever has none is over: its results are late."""

    def __init__(self) -> None:
        self._rules: dict[int, StopRule] = {}

    def add(self, key: int, rule: StopRule) -> None:
        """A request entered."""
        self._rules[key] = rule

    def drop(self, key: int) -> None:
        """A request is over."""
        self._rules.pop(key, None)

    def get(self, key: int) -> StopRule | None:
        """The rule of a live request."""
        return self._rules.get(key)


class Awaited(Protocol):
    """What the scheduler knows of results that no longer count."""

    def void_keys(self, round_number: int) -> frozenset[int]:
        """Requests that were thrown out since that round and go on: its tokens are not theirs."""
        ...

    def awaits_round(self, round_number: int) -> bool:
        """Whether that round's forward has not reported yet."""
        ...

    def awaits_peer(self, key: int, attempt: int) -> bool:
        """Whether a peer is prefilling this request and attempt."""
        ...


def commit(events: Sequence[Event], rules: StopRules, awaited: Awaited) -> tuple[list[Event], list[Committed]]:
    """Cut every result at its stop rule: the events, each followed by the finishes it causes, and the outputs.

    A result or a prefill that is told twice counts once (R2.4), also when both come together.
    """
    committed: list[Event] = []
    outputs: list[Committed] = []
    told: set[int | tuple[int, int]] = set()
    asked: dict[int, dict[int, TokenLogprob]] = {}  # by round, then by row

    def cut(key: int, tokens: list[int], logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        rule = rules.get(key) if tokens else None
        if rule is None:
            return
        kept, reason = rule.cut(tokens)
        outputs.append(Committed(key, kept, reason, logprobs))
        if reason is not None:
            rules.drop(key)
            committed.append(Finish(key, reason))

    for event in events:
        committed.append(event)
        if isinstance(event, TokenLogprobs):
            asked[event.round] = logprobs_by_row(event)
        if isinstance(event, RemotePrefillDone) and (event.key, event.attempt) not in told:
            told.add((event.key, event.attempt))
            if awaited.awaits_peer(event.key, event.attempt):
                cut(event.key, view(event.tokens).tolist())
        if not isinstance(event, ExtendResult) or event.round in told or not awaited.awaits_round(event.round):
            continue
        told.add(event.round)
        void = awaited.void_keys(event.round)
        tokens = view(event.tokens).tolist()
        scored = asked.pop(event.round, {})
        begin = 0
        for row, (key, count) in enumerate(zip(view(event.keys).tolist(), view(event.counts).tolist(), strict=True)):
            end = begin + count
            if key not in void:
                cut(key, tokens[begin:end], (scored[row],) if row in scored else ())
            begin = end
    return committed, outputs
