"""A tokenizer read from a model's folder by `transformers`. Imported only when a model has such a folder."""

import inspect
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError
from msgspec import structs, to_builtins
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from control_plane.errors import ConfigError, RequestRejected
from tokenspeed.text.detokenizer import WindowDetokenizer
from tokenspeed.text.tokenizer import READY, ChatMessage, ChatOptions, Detokenizer

# The characters by which byte-level tokenizers write bytes.
_BYTE_OF: dict[str, int] = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]

_TEMPLATE_ERRORS: Final = (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_OWN_ARGUMENTS: Final = frozenset(
    ("self", "conversation", "messages", *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
)


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

    def decode(self, token_ids: Sequence[int], *, shows_special: bool = False) -> str:
        """The text of token ids; special tokens have none, unless they are to be shown by name."""
        text: str = self._backend.decode(token_ids, skip_special_tokens=not shows_special)
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

    def lark_of(self, mark: str) -> str:
        """How a grammar in Lark names a mark: a token of that name if there is one, else its text."""
        token_id = self._backend.token_to_id(mark)
        return f"<[{token_id}]>" if token_id in self._added_ids else json.dumps(mark)

    def render_chat(self, messages: Sequence[ChatMessage], options: ChatOptions = READY) -> str:
        """The conversation through the folder's own chat template.

        Raises RequestRejected when there is none (a base model), or when it refuses the messages.
        """
        if not self._chat.chat_template:
            raise RequestRejected(
                "this model has no chat template (it is a base model): use /v1/completions with a prompt",
                field="messages",
            )
        if wrong := sorted(_OWN_ARGUMENTS & options.template_values.keys()):
            raise RequestRejected(
                f"chat_template_kwargs has {wrong[0]!r}, which is not a template's to know: leave it out",
                field="chat_template_kwargs",
            )
        turns = [to_builtins(message) for message in messages]
        try:
            return self._render(turns, options)
        except _TEMPLATE_ERRORS as error:
            index = self._first_refused(turns, options)
            raise RequestRejected(
                f"the model's chat template refuses messages[{index}]: {error}", field=f"messages[{index}]"
            ) from error

    def _render(self, turns: Sequence[dict[str, Any]], options: ChatOptions) -> str:
        text: str = self._chat.apply_chat_template(
            turns,
            tools=list(options.tools) or None,
            tokenize=False,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            **options.template_values,
        )
        return text

    def _first_refused(self, turns: Sequence[dict[str, Any]], options: ChatOptions) -> int:
        """The message with which a conversation that is refused as a whole begins to be."""
        least, most = 0, len(turns) - 1
        plain = structs.replace(options, continue_final_message=False)
        while least < most:
            middle = (least + most) // 2
            try:
                self._render(turns[: middle + 1], plain)
                least = middle + 1
            except _TEMPLATE_ERRORS:
                most = middle
        return least
