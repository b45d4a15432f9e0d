"""`POST /v1/chat/completions`: a conversation, continued by the assistant."""

import uuid
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from control_plane.errors import RequestRejected
from control_plane.messages import FinishReason
from tokenspeed.generation import RequestOutput
from tokenspeed.sampling import MAX_LOGPROBS
from tokenspeed.server.answer import UsageBody
from tokenspeed.server.protocol import ChatRequest
from tokenspeed.server.token_scores import ChatScores, TokenBytes, chat_scores
from tokenspeed.turns.reader import CallArguments, CallBegins, Content, Part, Reasoning, TurnReader, joined


class FunctionCall(Struct, frozen=True):
    """The function that is called, and the JSON text of its arguments."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True):
    """One call of a whole turn."""

    id: str
    function: FunctionCall
    type: str = "function"


class FunctionDelta(Struct, frozen=True, omit_defaults=True):
    """The name once, then the arguments piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct, frozen=True):
    """More of one call. Only its first one has id and type."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class AssistantMessage(Struct, frozen=True):
    """The assistant's turn as a whole. Where it is nothing but calls there is no content."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Delta(Struct, frozen=True):
    """More of the assistant's turn. Only the first one names the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One continuation."""

    index: int
    message: AssistantMessage
    finish_reason: str | None
    logprobs: ChatScores | None = None


class ChunkChoice(Struct, frozen=True):
    """More of one continuation."""

    index: int
    delta: Delta
    finish_reason: str | None
    logprobs: ChatScores | None = None


class ChatBody(Struct, frozen=True):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: UsageBody
    object: str = "chat.completion"


class ChatChunk(Struct, frozen=True):
    """One frame of a streamed answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET
    object: str = "chat.completion.chunk"


class ChatFormat:
    """How this endpoint answers. `readers` has one for each choice whose text is more than content."""

    names_events: Final = False

    def __init__(
        self, *, id: str, created: int, model: str, token_bytes: TokenBytes, readers: Sequence[TurnReader] = ()
    ) -> None:
        self._id = f"chatcmpl-{id}"
        self._created = created
        self._model = model
        self._token_bytes = token_bytes
        self._readers = readers

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> Struct:
        """The body of an answer that is not streamed."""
        turns = tuple(
            ChatChoice(output.index, self._message(output), self._reason(output), self._scores(output))
            for output in outputs
        )
        return ChatBody(self._id, self._created, self._model, turns, usage)

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The frame that names the role."""
        return (self._chunk(ChunkChoice(index, Delta("assistant", ""), None), usage=usage),)

    def more(self, output: RequestOutput, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The frames with more of a continuation; its scores and its end are on the last of them."""
        deltas = [_delta(part) for part in self._parts(output)]
        if not deltas:
            if not output.logprobs and output.finish_reason is None:
                return ()
            deltas = [Delta()]
        *firsts, last = deltas
        choices = [ChunkChoice(output.index, delta, None) for delta in firsts]
        choices.append(ChunkChoice(output.index, last, self._reason(output), self._scores(output)))
        return [self._chunk(choice, usage=usage) for choice in choices]

    def closing(self, usage: UsageBody, *, is_usage_asked: bool) -> Sequence[Struct]:
        """The frame without choices that tells the usage."""
        return [self._chunk(usage=usage)] if is_usage_asked else ()

    def _parts(self, output: RequestOutput) -> list[Part]:
        if not self._readers:
            return [Content(output.text)] if output.text else []
        reader = self._readers[output.index]
        parts = reader.feed(output.text)
        return parts if output.finish_reason is None else [*parts, *reader.finish()]

    def _message(self, output: RequestOutput) -> AssistantMessage:
        reasoning, content, calls = joined(self._parts(output))
        return AssistantMessage(
            content if content or not calls else None,
            reasoning_content=reasoning or UNSET,
            tool_calls=[ToolCall(_call_id(), FunctionCall(*call)) for call in calls] or UNSET,
        )

    def _reason(self, output: RequestOutput) -> str | None:
        if output.finish_reason is FinishReason.STOP and self._readers and self._readers[output.index].call_count:
            return "tool_calls"
        return output.finish_reason

    def _scores(self, output: RequestOutput) -> ChatScores | None:
        return chat_scores(output.logprobs, self._token_bytes) if output.logprobs else None

    def _chunk(self, *choices: ChunkChoice, usage: UsageBody | UnsetType | None) -> ChatChunk:
        return ChatChunk(self._id, self._created, self._model, choices, usage)


def _delta(part: Part) -> Delta:
    match part:
        case Content(text=text):
            return Delta(content=text)
        case Reasoning(text=text):
            return Delta(reasoning_content=text)
        case CallBegins(index=index, name=name):
            return Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(name, ""), _call_id(), "function")])
        case CallArguments(index=index, text=text):
            return Delta(tool_calls=[ToolCallDelta(index, FunctionDelta(arguments=text))])


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def max_tokens_of(request: ChatRequest) -> int | None:
    """The newer of the two names for the same limit wins; without either, as many as fit."""
    return request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens


def logprobs_of(request: ChatRequest) -> int | None:
    """How many of the likeliest tokens are wanted beside each one; None: no log probabilities at all."""
    if request.logprobs not in (None, True, False) or type(request.logprobs) is int:
        raise RequestRejected(f"logprobs={request.logprobs!r} must be true, false or null", field="logprobs")
    if not request.logprobs:
        if request.top_logprobs:
            raise RequestRejected("top_logprobs needs logprobs=true: set it, or leave both out", field="top_logprobs")
        return None
    count = request.top_logprobs or 0
    if not 0 <= count <= MAX_LOGPROBS:
        raise RequestRejected(f"top_logprobs={count} must be between 0 and {MAX_LOGPROBS}", field="top_logprobs")
    return count
