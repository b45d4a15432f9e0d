"""What the engine asks of a tokenizer, whichever it is."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ChatMessage(Struct, frozen=True):
    """One turn of a conversation as plain text."""

    role: str
    content: str


class Detokenizer(Protocol):
    """Token ids of one output as text, as they come. Deltas never hold part of a character of valid text."""

    def feed(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        ...

    def flush(self) -> str:
        """What is left at the end: an unfinished character becomes one U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back. Safe to call from several threads."""

    @property
    def longest_token_bytes(self) -> int:
        """UTF-8 bytes of the longest token: no text of n tokens is longer than n times this."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, with the model's own opening tokens unless told otherwise."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none."""
        ...

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for the output that follows these last tokens of its prompt."""
        ...

    def render_chat(self, messages: Sequence[ChatMessage]) -> str:
        """A conversation as the model was trained to read it, open for the assistant's next turn.

        The text holds the special tokens: encode it without adding any. Raises RequestRejected when the model has no
        chat template, or when its template refuses the messages.
        """
        ...
