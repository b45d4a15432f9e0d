"""An answer on its way to the client, whole or streamed; what it looks like is the format's business."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Protocol

import msgspec
from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from control_plane.messages import FinishReason
from tokenspeed.errors import EngineUnavailable, GenerationFailed
from tokenspeed.generation import Generation, RequestOutput, merged, whole
from tokenspeed.server.errors import explain
from tokenspeed.server.protocol import StreamOptions
from tokenspeed.server.sse import EventStream


class PromptDetails(Struct, frozen=True):
    """What part of the prompt came from the prefix cache."""

    cached_tokens: int


class UsageBody(Struct, frozen=True):
    """Tokens of one answer. Each prompt counts once, however many continuations it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class AnswerFormat(Protocol):
    """The shape of one endpoint's answers."""

    @property
    def names_events(self) -> bool:
        """Whether frames are sent as events under their `type`, and without a mark of the end."""
        ...

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> Struct | dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The frames that open a continuation."""
        ...

    def more(self, output: RequestOutput, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The frames with more of a continuation; nothing while there is nothing to show."""
        ...

    def closing(self, usage: UsageBody, *, is_usage_asked: bool) -> Sequence[Struct]:
        """The frames behind the last continuation."""
        ...


async def send_whole(form: AnswerFormat, generations: Sequence[Generation], *, choices_per_prompt: int) -> web.Response:
    """Wait for all of it. Raises GenerationFailed or EngineUnavailable when any continuation cannot be finished."""
    outputs = await whole(generations)
    for output in outputs:
        raise_if_broken(output)
    usage = usage_of(generations, choices_per_prompt=choices_per_prompt)
    return web.Response(body=msgspec.json.encode(form.whole(outputs, usage)), content_type="application/json")


async def send_stream(
    stream: EventStream,
    form: AnswerFormat,
    generations: Sequence[Generation],
    *,
    choices_per_prompt: int,
    options: StreamOptions,
) -> web.StreamResponse:
    """Send it as it comes. A client that goes aborts it; an error after the headers is a frame."""
    try:
        await stream.open()
        usage = _running_usage(generations, choices_per_prompt=choices_per_prompt, options=options)
        for index in range(len(generations)):
            for frame in form.opening(index, usage):
                await stream.send(frame)
        async with aclosing(merged(generations)) as outputs:
            async for output in outputs:
                raise_if_broken(output)
                usage = _running_usage(generations, choices_per_prompt=choices_per_prompt, options=options)
                for frame in form.more(output, usage):
                    await stream.send(frame)
        total = usage_of(generations, choices_per_prompt=choices_per_prompt)
        for frame in form.closing(total, is_usage_asked=bool(options.include_usage)):
            await stream.send(frame)
        await stream.finish()
    except ConnectionError:
        pass  # The client has gone: there is nobody to tell.
    except Exception as error:
        await _tell(stream, error)
    finally:
        for generation in generations:
            generation.abort()
    return stream.response


def raise_if_broken(output: RequestOutput) -> None:
    """Raise when a continuation ended without being finished."""
    if output.finish_reason is FinishReason.ERROR:
        raise GenerationFailed(output.error)
    if output.finish_reason is FinishReason.ABORT:
        raise EngineUnavailable(output.error or "the request was taken back: the engine is closing")


def usage_of(generations: Sequence[Generation], *, choices_per_prompt: int) -> UsageBody:
    """Tokens up to now; a prompt's own numbers are those of its first continuation."""
    firsts = [generation.usage for generation in generations[::choices_per_prompt]]
    return usage_body(
        prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
        completion_tokens=sum(generation.usage.completion_tokens for generation in generations),
        cached_tokens=sum(usage.cached_tokens for usage in firsts),
    )


def usage_body(*, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> UsageBody:
    """The usage object with its sum."""
    return UsageBody(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, PromptDetails(cached_tokens))


def _running_usage(
    generations: Sequence[Generation], *, choices_per_prompt: int, options: StreamOptions
) -> UsageBody | UnsetType | None:
    """What a frame says about usage: running numbers, null where the last frame will tell, or nothing."""
    if options.continuous_usage_stats:
        return usage_of(generations, choices_per_prompt=choices_per_prompt)
    return None if options.include_usage else UNSET


async def _tell(stream: EventStream, error: Exception) -> None:
    status, body = explain(error)
    try:
        await stream.fail(body, is_orderly=status == 503)
    except ConnectionError:
        pass  # Gone as well.
