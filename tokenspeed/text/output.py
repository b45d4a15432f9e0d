"""The one place where an output is cut: text, token ids and usage end at the same token."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from control_plane.messages import FinishReason
from tokenspeed.text.stop_strings import StopStrings
from tokenspeed.text.tokenizer import Detokenizer


class Piece(Struct, frozen=True):
    """What became visible: text, the ids behind it (text may lag them), and why the output ended, if it did.

    `offsets` says for each id how many characters of output were known before it, if that is kept.
    """

    text: str
    token_ids: tuple[int, ...]
    reason: FinishReason | None
    offsets: tuple[int, ...] = ()


class OutputText:
    """One output on its way to the client.

    A stop string ends the output with the token that completes it: that token counts, no later one does, and the text
    ends before the stop. A stop token counts and has no text.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        stop_token_ids: Collection[int],
        *,
        min_tokens: int = 0,
        keeps_offsets: bool = False,
    ) -> None:
        """No stop string is looked for in the text of the first `min_tokens` tokens."""
        self._detokenizer = detokenizer
        self._min_tokens = min_tokens
        self._keeps_offsets = keeps_offsets
        self._characters = 0
        self._stops = StopStrings(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self.token_count = 0
        self.reason: FinishReason | None = None

    def feed(self, tokens: Sequence[int], reason: FinishReason | None) -> Piece:
        """Take what arrived. `reason` ends the output, unless a stop string already ended it earlier."""
        assert self.reason is None, "an output that ended goes on"
        texts = []
        offsets: list[int] = []
        hides_last = reason is FinishReason.STOP and bool(tokens) and tokens[-1] in self._stop_token_ids
        visible = tokens[:-1] if hides_last else tokens
        for count, token in enumerate(visible, start=1):
            text = self._detokenizer.feed(token)
            if self._keeps_offsets:
                offsets.append(self._characters)
                self._characters += len(text)
            is_met = False
            if self.token_count + count > self._min_tokens:
                text, is_met = self._stops.feed(text)
            texts.append(text)
            if is_met:
                return self._ended(texts, tokens[:count], FinishReason.STOP, offsets)
        if hides_last and self._keeps_offsets:
            offsets.append(self._characters)
        if reason is None:
            self.token_count += len(tokens)
            return Piece("".join(texts), tuple(tokens), None, tuple(offsets))
        text, is_met = self._stops.feed(self._detokenizer.flush())
        texts.append(text)
        if is_met:
            return self._ended(texts, tokens, FinishReason.STOP, offsets)
        texts.append(self._stops.release())
        return self._ended(texts, tokens, reason, offsets)

    def _ended(
        self, texts: Sequence[str], tokens: Sequence[int], reason: FinishReason, offsets: Sequence[int]
    ) -> Piece:
        self.token_count += len(tokens)
        self.reason = reason
        return Piece("".join(texts), tuple(tokens), reason, tuple(offsets))
