"""Token ids to text without half characters, for any tokenizer that can decode a list."""

from collections.abc import Callable, Sequence
from typing import Final

REPLACEMENT: Final = "\ufffd"
MAX_HELD_TOKENS: Final = 8


class WindowDetokenizer:
    """Decodes the newest tokens behind the ones before them, and gives out what those did not already show.

    A token's text depends on its left neighbours (joined bytes, stripped spaces), so a token is never decoded alone.
    Decoding is not monotone either: with byte-fallback tokens, a whole character followed by part of the next decodes
    to nothing but U+FFFD. So text is held while it ends in U+FFFD, which is what an unfinished character looks like,
    for at most `MAX_HELD_TOKENS` tokens: no character has that many bytes, so more than that is not one.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], special_ids: frozenset[int], prompt_tail: Sequence[int] = ()
    ) -> None:
        """`prompt_tail` are the tokens before the first one: the output's left neighbours."""
        self._decode = decode
        self._special_ids = special_ids
        self._context = [token_id for token_id in prompt_tail if token_id not in special_ids]
        self._context_text = decode(self._context)
        self._held: list[int] = []

    def feed(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        if token_id in self._special_ids:
            return ""
        self._held.append(token_id)
        text = self._decode([*self._context, *self._held])
        if not text.endswith(REPLACEMENT):
            piece = self._behind_context(text)
        else:
            piece = self._after_invalid()
        if piece or len(self._held) >= MAX_HELD_TOKENS:
            piece = piece or self._decode(self._held)
            self._release()
        return piece

    def flush(self) -> str:
        """What is left at the end: an unfinished character becomes one U+FFFD, however many bytes it has."""
        if not self._held:
            return ""
        piece = self._decode(self._held)
        self._release()
        if piece.endswith(REPLACEMENT):
            return piece.rstrip(REPLACEMENT) + REPLACEMENT
        return piece

    def _behind_context(self, text: str) -> str:
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        return self._decode(self._held)

    def _after_invalid(self) -> str:
        """The longest tail of what is held that is whole by itself, behind one U+FFFD for what it leaves out.

        No tail of an unfinished character is whole: if one is, then what is before it will never become a character.
        """
        for begin in range(len(self._held)):
            piece = self._decode(self._held[begin:])
            if piece and REPLACEMENT not in piece:
                return REPLACEMENT + piece if begin else piece
        return ""

    def _release(self) -> None:
        self._context = self._held
        self._context_text = self._decode(self._held)
        self._held = []
