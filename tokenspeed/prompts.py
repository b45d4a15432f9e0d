"""From what a caller gives to the token ids of a prompt, without stopping the event loop for long ones."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.text.tokenizer import ChatMessage, ChatOptions, Tokenizer

Prompt = str | Sequence[int]

# Below this a text is encoded faster than a thread is woken.
INLINE_CHARACTERS: Final = 2_000


class EncodedChat(Struct, frozen=True):
    """A conversation as token ids, and as the text that the template made of it."""

    token_ids: list[int]
    text: str


class PromptEncoder:
    """Encodes prompts for a model of `vocab_size` tokens and at most `max_context_tokens` of context.

    A text with more bytes than the longest possible prompt is refused before it is tokenised.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, max_context_tokens: int, max_prompt_tokens: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_context_tokens = max_context_tokens
        self._max_prompt_tokens = max_prompt_tokens or max_context_tokens
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenspeed-encode")

    async def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's token ids. Raises RequestRejected when it is empty, too long or not of this vocabulary."""
        if isinstance(prompt, str):
            return await self._encode_text(prompt, field="prompt", add_special_tokens=True)
        return self._checked(list(prompt), field="prompt")

    async def encode_chat(self, messages: Sequence[ChatMessage], options: ChatOptions | None = None) -> EncodedChat:
        """A conversation as a prompt. Raises RequestRejected as `encode`, or when no template can render it."""
        if not messages:
            raise RequestRejected("messages=[] must hold at least one message", field="messages")
        self._check_bytes(sum(len(message.content) for message in messages), field="messages")
        text = self._tokenizer.render_chat(messages, options or ChatOptions())
        return EncodedChat(await self._encode_text(text, field="messages", add_special_tokens=False), text)

    async def tokens_of(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of any text that is not far longer than a prompt can be; it may be none."""
        self._check_bytes(len(text), field="prompt")
        return await self._tokenized(text, add_special_tokens=add_special_tokens)

    def close(self) -> None:
        """Give the threads back; a prompt that is being encoded is finished first."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _encode_text(self, text: str, *, field: str, add_special_tokens: bool) -> list[int]:
        if not text:
            raise RequestRejected(f"{field} is empty: give at least one token", field=field)
        self._check_bytes(len(text), field=field)
        return self._checked(await self._tokenized(text, add_special_tokens=add_special_tokens), field=field)

    async def _tokenized(self, text: str, *, add_special_tokens: bool) -> list[int]:
        encode = partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens)
        if len(text) <= INLINE_CHARACTERS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(self._threads, encode)

    def _check_bytes(self, size: int, *, field: str) -> None:
        """`size` in characters is a lower bound of the bytes, and costs nothing to know."""
        limit = self._max_context_tokens * self._tokenizer.longest_token_bytes
        if size > limit:
            raise RequestRejected(
                f"{field} is longer than any prompt of this model can be: shorten it",
                field=field,
                prompt_bytes=size,
                limit_bytes=limit,
                max_context_tokens=self._max_context_tokens,
            )

    def _checked(self, token_ids: list[int], *, field: str) -> list[int]:
        if not token_ids:
            raise RequestRejected(f"{field} is empty: give at least one token", field=field)
        if len(token_ids) >= self._max_context_tokens:
            raise RequestRejected(
                f"{field} leaves no room for output in the model's context: shorten it",
                field=field,
                prompt_tokens=len(token_ids),
                max_context_tokens=self._max_context_tokens,
            )
        if len(token_ids) > self._max_prompt_tokens:
            raise RequestRejected(
                f"{field} is longer than this server takes: shorten it",
                field=field,
                prompt_tokens=len(token_ids),
                max_prompt_tokens=self._max_prompt_tokens,
            )
        for token_id in token_ids:
            if type(token_id) is not int:
                raise RequestRejected(f"{field} holds {token_id!r}, which is not a token id", field=field)
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            wrong = next(token_id for token_id in token_ids if not 0 <= token_id < self._vocab_size)
            raise RequestRejected(
                f"{field} holds a token id that the model does not have",
                field=field,
                token_id=wrong,
                vocab_size=self._vocab_size,
            )
        return token_ids
