"""What the engine asks of a tokenizer, whichever it is."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from msgspec import Struct


class ChatMessage(Struct, frozen=True, omit_defaults=True):
    """One turn of a conversation as plain text, and what templates know of turns that call tools or answer calls."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatOptions(Struct, frozen=True):
    """How a conversation is rendered: open for the assistant's next turn, in the middle of its last, or neither.

    `tools` are described to the model, and `template_values` are passed to its template by name.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: tuple[dict[str, Any], ...] = ()
    template_values: dict[str, Any] = {}


READY: Final = ChatOptions()  # for the assistant's next turn


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

    def decode(self, token_ids: Sequence[int], *, shows_special: bool = False) -> str:
        """The text of token ids; special tokens have none, unless they are to be shown by name."""
        ...

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for the output that follows these last tokens of its prompt."""
        ...

    @property
    def chat_template(self) -> str:
        """The source of the model's chat template; empty when it has none."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; special tokens for their name."""
        ...

    def lark_of(self, mark: str) -> str:
        """How a grammar in Lark names a mark: a token of that name if there is one, else its text."""
        ...

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = READY) -> str:
        """A conversation as the model was trained to read it.

        The text holds the special tokens: encode it without adding any. Raises RequestRejected when the model has no
        chat template, or when its template refuses the messages.
        """
        ...
