"""Log probabilities of tokens as the two endpoints show them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from tokenspeed.generation import ScoredToken

# JSON has no minus infinity, which is what a filter leaves to a token that it takes out.
LEAST_LOGPROB: Final = -9999.0

TokenBytes = Callable[[int], bytes]


class TopToken(Struct, frozen=True):
    """One of the likeliest tokens. `bytes` is exact where a token is only part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Struct, frozen=True):
    """A token of the answer, and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: tuple[TopToken, ...]


class ChatScores(Struct, frozen=True):
    """Log probabilities of a chat choice, or of what a chunk adds to it."""

    content: tuple[ChatToken, ...]
    refusal: None = None


class CompletionScores(Struct, frozen=True):
    """Log probabilities of a completion, or of what a chunk adds to it: columns with an entry for each token.

    `text_offset` counts characters of the choice's text. The first token of an echoed prompt has no log probability.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def chat_scores(tokens: Sequence[ScoredToken], token_bytes: TokenBytes) -> ChatScores:
    """As `choices[].logprobs` of a chat answer."""
    return ChatScores(
        tuple(
            ChatToken(
                _text(data := token_bytes(token.token_id)),
                _finite(token.logprob),
                list(data),
                tuple(
                    TopToken(_text(data := token_bytes(token_id)), _finite(logprob), list(data))
                    for token_id, logprob in token.top
                ),
            )
            for token in tokens
        )
    )


def completion_scores(tokens: Iterable[ScoredToken], token_bytes: TokenBytes, *, offset: int = 0) -> CompletionScores:
    """As `choices[].logprobs` of a completion; the output begins at character `offset` of the choice's text."""
    scores = CompletionScores([], [], [], [])
    for token in tokens:
        scores.tokens.append(_name(token_bytes(token.token_id)))
        scores.token_logprobs.append(_finite(token.logprob))
        top: dict[str, float] = {}
        for token_id, logprob in token.top:
            top.setdefault(_name(token_bytes(token_id)), _finite(logprob))
        scores.top_logprobs.append(top)
        scores.text_offset.append(offset + token.text_offset)
    return scores


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _name(data: bytes) -> str:
    """A text that no other token has, as far as possible: a part of a character is written as its bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
