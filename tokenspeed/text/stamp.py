"""The tokenizer of the model without weights: one readable word a token."""

import json
import re
from collections.abc import Sequence

from tokenspeed.text.tokenizer import READY, ChatMessage, ChatOptions, Detokenizer

_WORD = re.compile(rb" w(\d{1,9})(?!\d)")


class StampTokenizer:
    """Token 17 reads " w17". Words are read back as they were written, any other text is one token a byte.

    `encode(decode(ids)) == ids` for all ids but the special ones, which have no text.
    """

    def __init__(self, vocab_size: int, special_ids: Sequence[int] = ()) -> None:
        assert vocab_size > 0, "a vocabulary without tokens"
        self._vocab_size = vocab_size
        self._special_ids = frozenset(special_ids)

    @property
    def longest_token_bytes(self) -> int:
        """UTF-8 bytes of the longest token."""
        return len(_word(self._vocab_size - 1))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text; this model opens no text with tokens of its own."""
        data = text.encode()
        ids: list[int] = []
        begin = 0
        for match in _WORD.finditer(data):
            token_id = int(match[1])
            if token_id < self._vocab_size and match[0].decode() == _word(token_id):
                ids += self._bytes(data[begin : match.start()])
                ids.append(token_id)
                begin = match.end()
        return ids + self._bytes(data[begin:])

    def decode(self, token_ids: Sequence[int], *, shows_special: bool = False) -> str:
        """The text of token ids; special tokens have none, unless they are to be shown by name."""
        return "".join(_word(each) for each in token_ids if shows_special or each not in self._special_ids)

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for the output that follows these last tokens of its prompt."""
        return _WordDetokenizer(self)

    @property
    def chat_template(self) -> str:
        """It has none that could be read: see `render_chat`."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        """The word."""
        return _word(token_id).encode()

    def lark_of(self, mark: str) -> str:
        """Its text: no token is named like a mark."""
        return json.dumps(mark)

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = READY) -> str:
        """A line for each turn."""
        text = "".join(f"{message.role}: {message.content}\n" for message in messages)
        if options.continue_final_message:
            return text.removesuffix("\n")
        return text + "assistant:" * options.add_generation_prompt

    def _bytes(self, data: bytes) -> list[int]:
        return [byte % self._vocab_size for byte in data]


class _WordDetokenizer:
    """Words are whole: nothing is ever held."""

    def __init__(self, tokenizer: StampTokenizer) -> None:
        self._tokenizer = tokenizer

    def feed(self, token_id: int) -> str:
        return self._tokenizer.decode((token_id,))

    def flush(self) -> str:
        return ""


def _word(token_id: int) -> str:
    return f" w{token_id}"
