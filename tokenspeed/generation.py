"""One continuation of one prompt on its way to whoever asked for it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from control_plane.messages import FinishReason, TokenLogprob
from tokenspeed.text.output import OutputText

if TYPE_CHECKING:
    from control_plane.loop.outbox import OutputStream
    from control_plane.loop.round_loop import RoundLoop


class Usage(Struct, frozen=True):
    """What one continuation cost so far. `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class ScoredToken(Struct, frozen=True):
    """The log probability of one token, and those of the likeliest ones in its place.

    `text_offset` is how many characters of output were known before it.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    text_offset: int


class RequestOutput(Struct, frozen=True):
    """What became known of continuation `index` since the last one: text, and the ids behind it (text may lag them).

    `logprobs` has an entry for each id when they were asked for.

    `finish_reason` is set exactly once, on the last: `stop`, `length`, `abort` (taken back, or the engine closed) or
    `error`; `error` then says what went wrong, or why it was taken back if that is known.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    usage: Usage
    error: str = ""
    logprobs: tuple[ScoredToken, ...] = ()


class Generation:
    """Reads one output stream of the loop. Ends by itself, at a stop string, or when its reader goes.

    Nothing is buffered here: while nobody reads, the loop merges what arrives.
    """

    def __init__(
        self,
        *,
        index: int,
        loop: "RoundLoop",
        stream: "OutputStream",
        text: OutputText,
        on_end: Callable[["Generation"], None],
    ) -> None:
        self.request_id = stream.spec.id
        self.index = index
        self.is_over = False
        self._loop = loop
        self._stream = stream
        self._text = text
        self._on_end = on_end
        self._cancelled_because = ""

    @property
    def usage(self) -> Usage:
        """What this cost up to now."""
        return Usage(self._stream.spec.prompt_tokens, self._text.token_count, self._stream.cached_tokens)

    async def next(self) -> RequestOutput:
        """Wait for the next output. The one with a finish reason is the last."""
        assert not self.is_over, "a generation that ended is read again"
        while True:
            arrived = await self._stream.next()
            piece = self._text.feed(arrived.tokens, arrived.reason)
            if piece.reason is not None:
                if arrived.reason is None:
                    self._loop.finish(self._stream)
                self._end()
            if piece.token_ids or piece.text or piece.reason is not None:
                error = arrived.message if piece.reason is FinishReason.ERROR else ""
                if piece.reason is FinishReason.ABORT:
                    error = self._cancelled_because
                return RequestOutput(
                    self.request_id,
                    self.index,
                    piece.text,
                    piece.token_ids,
                    piece.reason,
                    self.usage,
                    error,
                    _scored(arrived.logprobs, piece.offsets) if arrived.logprobs else (),
                )

    def cancel(self, because: str = "") -> None:
        """End it for whoever reads it: the next output is the last, with the reason `abort` and `because` as error."""
        self._cancelled_because = self._cancelled_because or because
        self._loop.abort(self._stream)

    def abort(self) -> None:
        """Nobody reads on. Does nothing when it is over."""
        if not self.is_over:
            self._loop.abort(self._stream)
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._on_end(self)


async def merged(generations: Sequence[Generation]) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of all, as they come, until each has ended. Closing the iterator early aborts those that have not."""
    try:
        if len(generations) == 1:
            while not generations[0].is_over:
                yield await generations[0].next()
        else:
            async with aclosing(_interleaved(generations)) as outputs:
                async for output in outputs:
                    yield output
    finally:
        for generation in generations:
            generation.abort()


async def whole(generations: Sequence[Generation]) -> list[RequestOutput]:
    """Wait for all, each as one output that holds everything. Cancelling aborts those that have not ended."""
    texts: list[list[str]] = [[] for _ in generations]
    token_ids: list[list[int]] = [[] for _ in generations]
    logprobs: list[list[ScoredToken]] = [[] for _ in generations]
    lasts: dict[int, RequestOutput] = {}
    async with aclosing(merged(generations)) as outputs:
        async for output in outputs:
            texts[output.index].append(output.text)
            token_ids[output.index] += output.token_ids
            logprobs[output.index] += output.logprobs
            lasts[output.index] = output
    return [
        structs.replace(
            lasts[index],
            text="".join(texts[index]),
            token_ids=tuple(token_ids[index]),
            logprobs=tuple(logprobs[index]),
        )
        for index in range(len(generations))
    ]


def _scored(logprobs: Sequence[TokenLogprob], offsets: Sequence[int]) -> tuple[ScoredToken, ...]:
    """As many as there are offsets: the text was cut there, too."""
    return tuple(
        ScoredToken(each.token, each.logprob, each.top, offset) for each, offset in zip(logprobs, offsets, strict=False)
    )


async def _interleaved(generations: Sequence[Generation]) -> AsyncGenerator[RequestOutput, None]:
    """One reader a generation; the queue is bounded, so a slow consumer makes them wait and the loop merge."""
    queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue(maxsize=len(generations))

    async def read(generation: Generation) -> None:
        try:
            while not generation.is_over:
                await queue.put(await generation.next())
        except Exception as error:
            await queue.put(error)

    readers = [asyncio.create_task(read(generation)) for generation in generations]
    try:
        unfinished = len(generations)
        while unfinished:
            output = await queue.get()
            if isinstance(output, Exception):
                raise output
            unfinished -= output.finish_reason is not None
            yield output
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
