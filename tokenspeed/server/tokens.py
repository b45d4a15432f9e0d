"""`POST /tokenize` and `POST /detokenize`: what a prompt is to the model, and back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.engine import AsyncEngine
from tokenspeed.server.messages import check_shown, messages_of, options_of
from tokenspeed.server.protocol import ChatRequest
from tokenspeed.server.tools import tools_of
from tokenspeed.threads import in_thread
from tokenspeed.turns.marks import TurnMarks

INLINE_TOKENS: Final = 2_000


class TokenizeRequest(ChatRequest, frozen=True, kw_only=True):
    """A text as `prompt`, or a conversation as for a chat. `add_special_tokens` concerns texts only."""

    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, frozen=True):
    """The token ids; `token_strs` has the text of each where asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Token ids."""

    model: str | None = None
    tokens: list[int] | None = None


class DetokenizeAnswer(Struct, frozen=True):
    """Their text, special tokens by name."""

    prompt: str


class Tokens:
    """The handlers."""

    def __init__(self, engine: AsyncEngine, served: Callable[[str], str], marks: TurnMarks) -> None:
        """`served` raises for a model name that is not served here."""
        self._engine = engine
        self._served = served
        self._marks = marks

    def routes(self) -> list[web.RouteDef]:
        """Where they are."""
        return [web.post("/tokenize", self.tokenize), web.post("/detokenize", self.detokenize)]

    async def tokenize(self, http: web.Request) -> web.Response:
        """`POST /tokenize`. A conversation is refused as a chat would be; a text may be longer than the context."""
        request = msgspec.json.decode(await http.read(), type=TokenizeRequest)
        self._check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise RequestRejected("give either a prompt or messages", field="prompt")
        if request.prompt is not None:
            tokens = await self._engine.tokens_of(
                request.prompt, add_special_tokens=request.add_special_tokens is not False
            )
        else:
            messages = messages_of(request, self._engine.tokenizer.chat_template)
            options = options_of(request, tools_of(request, self._marks))
            chat = await self._engine.prepare_chat(messages, options)
            check_shown(messages, chat.text)
            tokens = chat.token_ids
        texts = None
        if request.return_token_strs:
            token_bytes = self._engine.tokenizer.token_bytes
            texts = [token_bytes(token).decode(errors="replace") for token in tokens]
        return _json(TokenizeAnswer(len(tokens), self._engine.specs.max_context_tokens, tokens, texts))

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /detokenize`."""
        request = msgspec.json.decode(await http.read(), type=DetokenizeRequest)
        self._check_model(request.model)
        if request.tokens is None:
            raise RequestRejected("tokens is missing: give token ids", field="tokens")
        self._check(request.tokens)
        decode = partial(self._engine.tokenizer.decode, request.tokens, shows_special=True)
        text = decode() if len(request.tokens) <= INLINE_TOKENS else await in_thread(decode)
        return _json(DetokenizeAnswer(text))

    def _check_model(self, name: str | None) -> None:
        if name is not None:
            self._served(name)

    def _check(self, tokens: Sequence[int]) -> None:
        vocab_size = self._engine.specs.vocab_size
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < vocab_size:
                raise RequestRejected(
                    "tokens holds a token id that the model does not have",
                    field="tokens",
                    token_id=token,
                    vocab_size=vocab_size,
                )


def _json(answer: Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
