"""A tokenizer read from a model's folder by `transformers`. Imported only when a model has such a folder."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from msgspec import to_builtins
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from control_plane.errors import ConfigError, RequestRejected
from tokenspeed.text.detokenizer import WindowDetokenizer
from tokenspeed.text.tokenizer import ChatMessage, ChatOptions, Detokenizer

# The characters by which byte-level tokenizers write bytes.
_BYTE_OF: dict[str, int] = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


class FolderTokenizer:
    """The fast tokenizer of a folder. Encoding and decoding release the interpreter lock.

    Raises ConfigError when the folder holds no tokenizer that the `tokenizers` library can run.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            backend: Any = getattr(loaded, "backend_tokenizer", None)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError([f"the folder {str(folder)!r} holds no tokenizer that can be read: {error}"]) from error
        if not isinstance(backend, Backend):
            raise ConfigError([f"the tokenizer in {str(folder)!r} has no tokenizer.json: convert it to a fast one"])
        self._chat = loaded
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added_ids = frozenset(added)
        self._is_byte_level = '"ByteLevel"' in json.dumps(json.loads(backend.to_str()).get("decoder"))

    @cached_property
    def longest_token_bytes(self) -> int:
        """UTF-8 bytes of the longest token."""
        return max(len(token.encode()) for token in self._backend.get_vocab(with_added_tokens=True))

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, with the model's own opening tokens unless told otherwise."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=True)
        return text

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer for the output that follows these last tokens of its prompt."""
        return WindowDetokenizer(self.decode, self._special_ids, prompt_tail)

    @property
    def chat_template(self) -> str:
        """The source of the folder's chat template; empty when it has none."""
        template = self._chat.chat_template
        return template if isinstance(template, str) else ""

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; special tokens for their name."""
        token: str = self._backend.id_to_token(token_id) or ""
        if self._is_byte_level and token_id not in self._added_ids:
            return bytes(byte for byte in (_BYTE_OF.get(character) for character in token) if byte is not None)
        if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions) -> str:
        """The conversation through the folder's own chat template.

        Raises RequestRejected when there is none (a base model), or when it refuses the messages.
        """
        if not self._chat.chat_template:
            raise RequestRejected(
                "this model has no chat template (it is a base model): use /v1/completions with a prompt",
                field="messages",
            )
        turns = [to_builtins(message) for message in messages]
        try:
            text: str = self._chat.apply_chat_template(
                turns,
                tools=list(options.tools) or None,
                tokenize=False,
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                **options.template_values,
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise RequestRejected(
                f"the model's chat template refuses these messages: {error}", field="messages"
            ) from error
        return text
