"""The routes, and what holds for all of them."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager

import msgspec
from aiohttp import web

from control_plane.errors import RequestRejected
from tokenspeed.engine import AsyncEngine
from tokenspeed.generation import Generation
from tokenspeed.sampling import SamplingParams
from tokenspeed.server import chat, completions
from tokenspeed.server.answer import AnswerFormat, send_stream, send_whole
from tokenspeed.server.chat import ChatFormat, max_tokens_of
from tokenspeed.server.completions import (
    DEFAULT_MAX_TOKENS,
    CompletionFormat,
    echoed,
    echoes_of,
    only_echoes,
    prompts_of,
)
from tokenspeed.server.constraints import Constraint, blamed_on, constraint_of
from tokenspeed.server.errors import ModelNotServed
from tokenspeed.server.lifecycle import Lifecycle
from tokenspeed.server.live import Live
from tokenspeed.server.messages import check_shown, messages_of, options_of
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
from tokenspeed.server.sse import EventStream
from tokenspeed.server.tokens import Tokens
from tokenspeed.server.tools import tools_of
from tokenspeed.structured import after_reasoning
from tokenspeed.turns.marks import END_THINK, TurnMarks, marks_of, opens_reasoning
from tokenspeed.turns.reader import TurnReader


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
        tokenizer = self._engine.tokenizer
        tools = tools_of(request, self._marks)
        messages = messages_of(request, tokenizer.chat_template)
        options = options_of(request, tools)
        constraint = constraint_of(request)
        if tools.forced is not None:
            if constraint is not None:
                raise RequestRejected(
                    f"{constraint.field} cannot be combined with a tool_choice that forces a call", field="tool_choice"
                )
            constraint = Constraint("tools", tools.grammar(tokenizer))
        prompt = await self._engine.prepare_chat(messages, options)
        check_shown(messages, prompt.text)
        in_reasoning = self._marks.thinks and opens_reasoning(prompt.text)
        if constraint is not None and in_reasoning:
            end = tokenizer.lark_of(END_THINK)
            constraint = Constraint(constraint.field, after_reasoning(constraint.grammar, end=end))
        params = sampling_params(
            request,
            max_tokens=max_tokens_of(request),
            logprobs=chat.logprobs_of(request),
            grammar=constraint.grammar if constraint else None,
        )
        request_id = request_id_of(http)
        marks = TurnMarks(self._marks.thinks, bool(tools.described))
        form = ChatFormat(
            id=request_id,
            created=int(time.time()),
            model=model,
            token_bytes=tokenizer.token_bytes,
            readers=[TurnReader(marks, in_reasoning=in_reasoning, most_calls=tools.most_calls) for _ in range(params.n)]
            if marks.thinks or marks.calls
            else (),
        )
        with blamed_on(constraint.field if constraint else "grammar"):
            await self._engine.check(params)
        return await self._generate(http, request, [prompt.token_ids], params, form, request_id=request_id)

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
            async with aclosing(EventStream(http, self._engine.config.keep_alive_seconds)) as stream:
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
