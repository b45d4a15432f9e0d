"""The engine as a library: prompts in, text out, both planes behind it."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from control_plane.errors import DeviceFailed, RequestRejected
from control_plane.messages import FinishReason, RequestSpec
from control_plane.messages.columns import pack
from tokenspeed.assembly import Assembly, assemble, discard, load_device, say_nothing
from tokenspeed.config import EngineConfig
from tokenspeed.errors import EngineBusy, EngineUnavailable, GenerationFailed
from tokenspeed.generation import Generation, RequestOutput, merged
from tokenspeed.observe.watch import WatchedScheduler
from tokenspeed.params_check import ParamsCheck
from tokenspeed.prompts import EncodedChat, Prompt, PromptEncoder
from tokenspeed.sampling import SamplingParams
from tokenspeed.text.output import OutputText
from tokenspeed.text.tokenizer import ChatMessage, ChatOptions
from tokenspeed.threads import in_thread

if TYPE_CHECKING:
    from control_plane.loop.round_loop import LoopStats
    from data_plane.model.base import ModelRunner

# Left neighbours of the first output token: enough for any tokenizer to know how a word is joined.
PROMPT_TAIL_TOKENS = 4

# What the scheduler calls a field, and what a caller does.
PUBLIC_FIELDS = {"tokens": "prompt", "max_new_tokens": "max_tokens"}


class AsyncEngine:
    """A running engine inside an asyncio program: `async with await AsyncEngine.start(config) as engine`.

    It is a guest: it installs no signal handlers, no event loop policy and no logging, and after `aclose` no task or
    thread of it is left. All methods are called on the event loop that started it. `unfinished_count` says how many
    generations were taken and have not ended.
    """

    def __init__(self, config: EngineConfig, assembly: Assembly) -> None:
        """Use `start`. Runs the rounds of what was assembled, on the running event loop."""
        self.config = config
        self.specs = assembly.specs
        self.tokenizer = assembly.tokenizer
        self._assembly = assembly
        self._loop = assembly.loop
        self._encoder = PromptEncoder(
            assembly.tokenizer,
            vocab_size=assembly.specs.vocab_size,
            max_context_tokens=assembly.specs.max_context_tokens,
            max_prompt_tokens=config.max_prompt_tokens,
        )
        self._params_check = ParamsCheck(assembly.specs)
        self._unfinished: dict[str, set[Generation]] = {}
        self.unfinished_count = 0
        self._limit = config.max_batch_size + config.max_queued_requests
        self._rounds = asyncio.create_task(self._loop.run(), name="tokenspeed rounds")
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        runner: "ModelRunner | None" = None,
        progress: Callable[[str], None] = say_nothing,
    ) -> Self:
        """Load the model and begin. Loading runs in a thread and says what it does through `progress`.

        `runner` is a model of your own, used instead of the one that `config.model` names; its tokens are then words.
        Raises ConfigError with every problem that was found, before anything is loaded where that is possible.
        """
        config.validate()
        loading = asyncio.create_task(in_thread(partial(load_device, config, runner=runner, progress=progress)))
        try:
            loaded = await asyncio.shield(loading)
        except asyncio.CancelledError:
            # A thread cannot be interrupted: what it will have built is given back when it is done.
            loading.add_done_callback(discard)
            raise
        return cls(config, assemble(config, loaded))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        namespace: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Continue a prompt (text or token ids), as text deltas; with `params.n` > 1 those of all continuations mixed.

        Closing the iterator, or cancelling the task that reads it, aborts the request. `namespace` separates prefix
        caches. Raises RequestRejected, EngineBusy or EngineUnavailable before the first output, GenerationFailed after.
        """
        prompts = [await self.encode(prompt)]
        generations = self.submit(prompts, params or SamplingParams(), request_id=request_id, namespace=namespace)
        async with aclosing(merged(generations)) as outputs:
            async for output in outputs:
                if output.finish_reason is FinishReason.ERROR:
                    raise GenerationFailed(output.error)
                yield output

    async def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt. Raises RequestRejected when no request can have it."""
        return await self._encoder.encode(prompt)

    async def encode_chat(self, messages: Sequence[ChatMessage], options: ChatOptions | None = None) -> list[int]:
        """The token ids of a conversation, ready for the assistant's turn. Raises RequestRejected."""
        return (await self._encoder.encode_chat(messages, options)).token_ids

    async def prepare_chat(self, messages: Sequence[ChatMessage], options: ChatOptions | None = None) -> EncodedChat:
        """The same with the text that the template made of it."""
        return await self._encoder.encode_chat(messages, options)

    async def tokens_of(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, prompt or not. Raises RequestRejected when it is far longer than any prompt."""
        return await self._encoder.tokens_of(text, add_special_tokens=add_special_tokens)

    async def check(self, params: SamplingParams) -> None:
        """Raise RequestRejected when this model cannot honour these parameters, without stopping the loop for long.

        `submit` checks them too; a grammar that is new to it is compiled there and then.
        """
        if params.grammar:
            await in_thread(partial(self._params_check.check, params))

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: str = "",
    ) -> list[Generation]:
        """`params.n` continuations of each prompt, in that order; all are taken or none.

        Each one must be read to its end or aborted. Raises RequestRejected, EngineBusy or EngineUnavailable.
        """
        if (reason := self.failure) is not None:
            raise EngineUnavailable(reason)
        self._params_check.check(params)
        count = len(prompts) * params.n
        if count > self._limit:
            raise RequestRejected(
                "more continuations are asked for than the engine takes", asked=count, limit=self._limit
            )
        if self.unfinished_count + count > self._limit:
            raise EngineBusy(unfinished=self.unfinished_count, limit=self._limit)
        request_id = request_id or f"r-{uuid.uuid4().hex[:16]}"
        generations: list[Generation] = []
        try:
            for prompt in prompts:
                for choice in params.choices():
                    spec = self._spec(prompt, choice, request_id=request_id, namespace=namespace)
                    generations.append(self._begin(spec, choice, index=len(generations), prompt=prompt))
        except BaseException as error:
            for generation in generations:
                generation.abort()
            if isinstance(error, DeviceFailed):
                raise EngineUnavailable(str(error)) from error
            if isinstance(error, RequestRejected):
                error.field = PUBLIC_FIELDS.get(error.field, error.field)
            raise
        return generations

    def is_unfinished(self, request_id: str) -> bool:
        """Whether a generation of this id was taken and has not ended."""
        return request_id in self._unfinished

    def unfinished_ids(self) -> list[str]:
        """The ids of all unfinished generations, oldest first."""
        return list(self._unfinished)

    def abort(self, request_id: str, because: str = "") -> bool:
        """End every generation of this id, with the finish reason `abort`. Returns whether there was one."""
        generations = tuple(self._unfinished.get(request_id, ()))
        for generation in generations:
            generation.cancel(because)
        return bool(generations)

    @property
    def failure(self) -> str | None:
        """Why no request can be served, or None while they can."""
        if self._closing is not None:
            return "the engine is closed"
        if self._loop.failure is None and self._rounds.done():
            return "the rounds have ended"
        return self._loop.failure

    def stats(self) -> "LoopStats":
        """The numbers of this moment."""
        return self._loop.stats()

    @property
    def watch(self) -> WatchedScheduler:
        """Times of requests and contents of rounds; see `tokenspeed.observe`."""
        return self._assembly.scheduler

    def explain(self, request_id: str) -> str:
        """Why a request is where it is, in words; of several with this id, the latest."""
        return self._assembly.scheduler.explain(request_id)

    def audit(self) -> list[str]:
        """What does not hold in the books of blocks and slots; empty when all is well."""
        return self._assembly.scheduler.audit()

    async def aclose(self) -> None:
        """End every open generation and give everything back. May be called again, and from several tasks."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="tokenspeed close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._loop.close()
        try:
            await self._rounds
        finally:
            await in_thread(self._give_back)

    def _give_back(self) -> None:
        self._encoder.close()
        self._assembly.close()

    def _spec(self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, namespace: str) -> RequestSpec:
        room = self.specs.max_context_tokens - len(prompt)
        stop_token_ids = (*params.stop_token_ids, *(() if params.ignore_eos else self.specs.stop_token_ids))
        return RequestSpec(
            id=request_id,
            tokens=pack(prompt),
            max_new_tokens=None if params.max_tokens is None else min(params.max_tokens, room),
            namespace=namespace,
            stop_token_ids=stop_token_ids,
            sampling=params.to_sampling(stop_token_ids),
        )

    def _begin(self, spec: RequestSpec, params: SamplingParams, *, index: int, prompt: Sequence[int]) -> Generation:
        text = OutputText(
            self.tokenizer.detokenizer(prompt[-PROMPT_TAIL_TOKENS:]),
            params.stop,
            spec.stop_token_ids,
            min_tokens=params.min_tokens,
            keeps_offsets=params.logprobs is not None,
        )
        generation = Generation(
            index=index, loop=self._loop, stream=self._loop.submit(spec), text=text, on_end=self._forget
        )
        self._unfinished.setdefault(spec.id, set()).add(generation)
        self.unfinished_count += 1
        return generation

    def _forget(self, generation: Generation) -> None:
        same_id = self._unfinished[generation.request_id]
        same_id.remove(generation)
        if not same_id:
            del self._unfinished[generation.request_id]
        self.unfinished_count -= 1
