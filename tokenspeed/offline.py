"""The engine for programs without an event loop: lists of prompts in, lists of texts out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import structs

from tokenspeed.assembly import say_nothing
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.errors import EngineUnavailable
from tokenspeed.generation import RequestOutput, whole
from tokenspeed.prompts import Prompt
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from data_plane.model.base import ModelRunner

T = TypeVar("T")


class Engine:
    """A running engine with an event loop of its own in a thread: `with Engine(config) as engine`.

    May be called from any thread, several at once. Raises ConfigError when made with settings that cannot work.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        runner: "ModelRunner | None" = None,
        progress: Callable[[str], None] = say_nothing,
    ) -> None:
        config.validate()
        # Nobody could be told to come back later: whoever calls waits anyway.
        self._config = structs.replace(config, max_queued_requests=2**31 - 1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tokenspeed", daemon=True)
        self._thread.start()
        self._is_closed = False
        try:
            self._engine = self._run(AsyncEngine.start(self._config, runner=runner, progress=progress))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams | None = None) -> list[RequestOutput]:
        """Continue every prompt; `params.n` whole outputs for each, in the order of the prompts.

        Any number of prompts may be given: as many as the engine takes are in it at once. An output that could not be
        finished has the finish reason `error`; the others are not lost with it. Raises RequestRejected when any
        prompt cannot be served.
        """
        return self._run(self._generate(prompts, params or SamplingParams()))

    def close(self) -> None:
        """End everything that is open and give it back. May be called again."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._submit(self._engine.aclose()).result()
            finally:
                self._end_loop()

    async def _generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[RequestOutput]:
        encoded = [await self._engine.encode(prompt) for prompt in prompts]
        # Enough to keep every batch full; the others need not be known to the scheduler yet.
        places = asyncio.Semaphore(2 * self._config.max_batch_size)

        async def one(prompt: Sequence[int]) -> list[RequestOutput]:
            async with places:
                return await whole(self._engine.submit([prompt], params))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in encoded]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [output for task in tasks for output in task.result()]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work on the loop. An interrupt in the waiting thread cancels it."""
        if self._is_closed:
            work.close()
            raise EngineUnavailable("the engine is closed")
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
