"""The one place where an output is cut: text, token ids and usage end at the same token."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from control_plane.messages import FinishReason
from tokenspeed.text.stop_strings import StopStrings
from tokenspeed.text.tokenizer import Detokenizer


class Piece(Struct, frozen=True):
    """What became visible: text, the ids behind it (text may lag them), and why the output ended, if it did."""

    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason | None


class OutputText:
    """One output on its way to the client.

    A stop string ends the output with the token that completes it: that token counts, no later one does, and the text
    ends before the stop. A stop token counts and has no text.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], stop_token_ids: Collection[int]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self.token_count = 0
        self.reason: FinishReason | None = None

    def feed(self, tokens: Sequence[int], reason: FinishReason | None) -> Piece:
        """Take what arrived. `reason` ends the output, unless a stop string already ended it earlier."""
        assert self.reason is None, "an output that ended goes on"
        texts = []
        hides_last = reason is FinishReason.STOP and bool(tokens) and tokens[-1] in self._stop_token_ids
        visible = tokens[:-1] if hides_last else tokens
        for count, token in enumerate(visible, start=1):
            text, is_met = self._stops.feed(self._detokenizer.feed(token))
            texts.append(text)
            if is_met:
                return self._ended(texts, tokens[:count], FinishReason.STOP)
        if reason is None:
            self.token_count += len(tokens)
            return Piece("".join(texts), tuple(tokens), None)
        text, is_met = self._stops.feed(self._detokenizer.flush())
        texts.append(text)
        if is_met:
            return self._ended(texts, tokens, FinishReason.STOP)
        texts.append(self._stops.release())
        return self._ended(texts, tokens, reason)

    def _ended(self, texts: Sequence[str], tokens: Sequence[int], reason: FinishReason) -> Piece:
        self.token_count += len(tokens)
        self.reason = reason
        return Piece("".join(texts), tuple(tokens), reason)
