"""The routes, and what holds for all of them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager

import msgspec
from aiohttp import web

from tokenspeed.engine import AsyncEngine
from tokenspeed.generation import Generation
from tokenspeed.sampling import SamplingParams
from tokenspeed.server import completions
from tokenspeed.server.answer import AnswerFormat, send_stream, send_whole
from tokenspeed.server.chat import ChatFormat
from tokenspeed.server.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionFormat,
    echoed,
    echoes_of,
    only_echoes,
    prompts_of,
)
from tokenspeed.server.constraints import blamed_on, constraint_of
from tokenspeed.server.conversation import conversation_of
from tokenspeed.server.errors import ModelNotServed
from tokenspeed.server.lifecycle import Lifecycle
from tokenspeed.server.live import Live
from tokenspeed.server.metrics import Metrics
from tokenspeed.server.middlewares import Middlewares, request_id_of
from tokenspeed.server.operations import Operations
from tokenspeed.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    StreamOptions,
    parse,
    refuse_unoffered,
    sampling_params,
)
from tokenspeed.server.responses import ResponsesFormat
from tokenspeed.server.responses_request import ResponsesRequest, chat_of, in_its_own_words
from tokenspeed.server.sse import EventStream
from tokenspeed.server.tokens import Tokens
from tokenspeed.turns.marks import marks_of


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
        self._marks = marks_of(engine.tokenizer)
        self._metrics = Metrics(engine)
        self.lifecycle = Lifecycle(engine)
        middlewares = Middlewares(engine.config, self._metrics, self.lifecycle)
        self.app = web.Application(
            client_max_size=engine.config.max_body_bytes,
            middlewares=middlewares.all,
        )
        self.app.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat),
                web.post("/v1/responses", self.responses),
                web.get("/v1/models", self.models),
                web.get("/v1/models/{name:.+}", self.model),
                *Tokens(engine, self._served, self._marks).routes(),
                *Operations(engine, self._metrics, self.lifecycle).routes(),
                *Live(engine, self.lifecycle).routes(),
            ]
        )
        self.app.on_response_prepare.append(middlewares.add_headers)

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        request = parse(await http.read(), CompletionRequest)
        model = self._model_of(request)
        refuse_unoffered(request)
        request_id = request_id_of(http)
        given = prompts_of(request)
        echoes = echoes_of(request, given, self._engine.tokenizer.decode)
        form = CompletionFormat(
            id=request_id,
            created=int(time.time()),
            model=model,
            token_bytes=self._engine.tokenizer.token_bytes,
            echoes=echoes,
        )
        prompts = [await self._engine.encode(prompt) for prompt in given]
        if only_echoes(request):
            sampling_params(request, max_tokens=None, logprobs=None)
            answer = echoed(form, prompt_tokens=sum(map(len, prompts)), choices=len(echoes))
            return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
        max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        constraint = constraint_of(request)
        params = sampling_params(
            request,
            max_tokens=max_tokens,
            logprobs=completions.logprobs_of(request),
            grammar=constraint.grammar if constraint else None,
        )
        with blamed_on(constraint.field if constraint else "grammar"):
            await self._engine.check(params)
        return await self._generate(http, request, prompts, params, form, request_id=request_id)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        request = parse(await http.read(), ChatRequest)
        model = self._model_of(request)
        refuse_unoffered(request)
        conversation = await conversation_of(request, self._engine, self._marks)
        request_id = request_id_of(http)
        form = ChatFormat(
            id=request_id,
            created=int(time.time()),
            model=model,
            token_bytes=self._engine.tokenizer.token_bytes,
            readers=conversation.readers,
        )
        return await self._generate(
            http, request, [conversation.token_ids], conversation.params, form, request_id=request_id
        )

    async def responses(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/responses`."""
        request = parse(await http.read(), ResponsesRequest)
        model = self._model_of(request)
        refuse_unoffered(request)
        with in_its_own_words():
            conversation = await conversation_of(chat_of(request), self._engine, self._marks)
        request_id = request_id_of(http)
        form = ResponsesFormat(
            id=request_id,
            created=int(time.time()),
            model=model,
            request=request,
            reader=next(iter(conversation.readers), None),
            count_tokens=lambda text: len(self._engine.tokenizer.encode(text, add_special_tokens=False)),
        )
        with in_its_own_words():
            return await self._generate(
                http, request, [conversation.token_ids], conversation.params, form, request_id=request_id
            )

    async def models(self, http: web.Request) -> web.Response:
        """`GET /v1/models`."""
        return web.json_response({"object": "list", "data": [self._model_card(name) for name in self._model_names]})

    async def model(self, http: web.Request) -> web.Response:
        """`GET /v1/models/NAME`."""
        return web.json_response(self._model_card(self._served(http.match_info["name"])))

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
        with self._deadline(generations):
            if not request.stream:
                return await send_whole(form, generations, choices_per_prompt=params.n)
            options = request.stream_options or StreamOptions()
            seconds = self._engine.config.keep_alive_seconds
            async with aclosing(EventStream(http, seconds, names_events=form.names_events)) as stream:
                return await send_stream(stream, form, generations, choices_per_prompt=params.n, options=options)

    @contextmanager
    def _deadline(self, generations: Sequence[Generation]) -> Iterator[None]:
        """End them when their time is up, if the server is configured to."""
        seconds = self._engine.config.request_timeout_seconds
        if seconds is None:
            yield
            return

        def expire() -> None:
            for generation in generations:
                generation.cancel(f"the request took longer than this server's limit of {seconds:g} s")

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            yield
        finally:
            timer.cancel()

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
