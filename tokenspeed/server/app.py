"""The routes, and what holds for all of them."""

import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from tokenspeed.engine import AsyncEngine
from tokenspeed.generation import Generation
from tokenspeed.sampling import SamplingParams
from tokenspeed.server.answer import AnswerFormat, send_stream, send_whole
from tokenspeed.server.chat import ChatFormat, max_tokens_of, messages_of
from tokenspeed.server.completions import DEFAULT_MAX_TOKENS, CompletionFormat, echoed, is_plain_echo, prompts_of
from tokenspeed.server.errors import ModelNotServed, Unauthorized, error_response
from tokenspeed.server.metrics import Metrics
from tokenspeed.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
    parse,
    refuse_unoffered,
    sampling_params,
)
from tokenspeed.server.sse import EventStream

REQUEST_ID_HEADER: Final = "X-Request-ID"
MAX_REQUEST_ID_CHARACTERS: Final = 128
_REQUEST_ID: Final = web.RequestKey("request_id", str)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(engine: AsyncEngine) -> web.Application:
    """The application over a running engine; closing the engine stays with the caller.

    Run it with `handler_cancellation=True` (`runner.py` does): aiohttp then cancels the handler of a client that has
    gone, and the request is aborted at once instead of with the next token.
    """
    return Server(engine).app


class Server:
    """The handlers, and the few things that they share."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._model_names = engine.config.model_names or (engine.specs.model,)
        self._started = int(time.time())
        self._metrics = Metrics(engine)
        self.app = web.Application(
            client_max_size=engine.config.max_body_bytes,
            middlewares=[self._count, self._answer_errors, self._check_key],
        )
        self.app.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{name:.+}", self.model),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics),
            ]
        )

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        request = parse(await http.read(), CompletionRequest)
        model = self._model_of(request)
        refuse_unoffered(request)
        request_id = request_id_of(http)
        form = CompletionFormat(id=request_id, created=int(time.time()), model=model)
        prompts = [await self._engine.encode(prompt) for prompt in prompts_of(request)]
        if is_plain_echo(request):
            texts = [self._engine.tokenizer.decode(prompt) for prompt in prompts]
            return web.Response(body=msgspec.json.encode(echoed(form, prompts, texts)), content_type="application/json")
        max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        params = sampling_params(request, max_tokens=max_tokens)
        return await self._generate(http, request, prompts, params, form, request_id=request_id)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        request = parse(await http.read(), ChatRequest)
        model = self._model_of(request)
        refuse_unoffered(request)
        params = sampling_params(request, max_tokens=max_tokens_of(request))
        request_id = request_id_of(http)
        form = ChatFormat(id=request_id, created=int(time.time()), model=model)
        prompt = await self._engine.encode_chat(messages_of(request))
        return await self._generate(http, request, [prompt], params, form, request_id=request_id)

    async def models(self, http: web.Request) -> web.Response:
        """`GET /v1/models`."""
        return web.json_response({"object": "list", "data": [self._model_card(name) for name in self._model_names]})

    async def model(self, http: web.Request) -> web.Response:
        """`GET /v1/models/NAME`."""
        return web.json_response(self._model_card(self._served(http.match_info["name"])))

    async def health(self, http: web.Request) -> web.Response:
        """`GET /health`: 200 while requests can be served, else 503 with the reason."""
        failure = self._engine.failure
        if failure is None:
            return web.json_response({"status": "ok"})
        return web.json_response({"status": "unhealthy", "reason": failure}, status=503)

    async def metrics(self, http: web.Request) -> web.Response:
        """`GET /metrics`."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _generate(
        self,
        http: web.Request,
        request: GenerationRequest,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        form: AnswerFormat,
        *,
        request_id: str,
    ) -> web.StreamResponse:
        """From here on the engine knows the request: whatever happens to this handler, it must end there too."""
        generations: list[Generation] = self._engine.submit(prompts, params, request_id=request_id)
        if not request.stream:
            return await send_whole(form, generations, choices_per_prompt=params.n)
        stream = EventStream(http, {REQUEST_ID_HEADER: request_id})
        options = request.stream_options or StreamOptions()
        return await send_stream(stream, form, generations, choices_per_prompt=params.n, options=options)

    def _model_of(self, request: GenerationRequest) -> str:
        return self._model_names[0] if request.model is None else self._served(request.model)

    def _served(self, name: str) -> str:
        if name not in self._model_names:
            raise ModelNotServed(f"model {name!r} is not served here; known: {', '.join(self._model_names)}")
        return name

    def _model_card(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "tokenspeed",
            "root": self._engine.specs.model,
            "max_model_len": self._engine.specs.max_context_tokens,
        }

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Echo the request's id and count the response under its route's pattern, not its path."""
        response = await handler(request)
        if not response.prepared:
            response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        resource = request.match_info.route.resource
        self._metrics.count_response(route=resource.canonical if resource else "unknown", status=response.status)
        return response

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every exception becomes an error object, but those that mean the client has gone."""
        try:
            return await handler(request)
        except ConnectionError:
            raise
        except Exception as error:
            return error_response(error)

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """With a key set, `/v1` needs it. Without one, whatever a client sends is ignored, an empty key too."""
        key = self._engine.config.api_key
        if key is not None and request.path.startswith("/v1/"):
            sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(sent.encode(), key.encode()):
                raise Unauthorized("send the server's API key as 'Authorization: Bearer KEY'")
        return await handler(request)


def request_id_of(http: web.Request) -> str:
    """The id that the client gave, or a fresh one; always the same for one request.

    It is only shown: two requests with one id do not meet.
    """
    if _REQUEST_ID not in http:
        given = http.headers.get(REQUEST_ID_HEADER, "")
        is_usable = given.isascii() and given.isprintable() and 0 < len(given) <= MAX_REQUEST_ID_CHARACTERS
        http[_REQUEST_ID] = given if is_usable else uuid.uuid4().hex
    return http[_REQUEST_ID]
