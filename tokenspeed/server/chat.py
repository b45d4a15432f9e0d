"""`POST /v1/chat/completions`: a conversation, continued by the assistant."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from control_plane.errors import RequestRejected
from control_plane.messages import FinishReason
from tokenspeed.generation import RequestOutput
from tokenspeed.sampling import MAX_LOGPROBS
from tokenspeed.server.answer import UsageBody
from tokenspeed.server.protocol import ChatRequest, MessageBody
from tokenspeed.server.token_scores import ChatScores, TokenBytes, chat_scores
from tokenspeed.text.tokenizer import ChatMessage


class AssistantMessage(Struct, frozen=True):
    """The assistant's turn as a whole."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Delta(Struct, frozen=True):
    """More of the assistant's turn. Only the first one names the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One continuation."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason | None
    logprobs: ChatScores | None = None


class ChunkChoice(Struct, frozen=True):
    """More of one continuation."""

    index: int
    delta: Delta
    finish_reason: FinishReason | None
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
    """How this endpoint answers."""

    def __init__(self, *, id: str, created: int, model: str, token_bytes: TokenBytes) -> None:
        self._id = f"chatcmpl-{id}"
        self._created = created
        self._model = model
        self._token_bytes = token_bytes

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> Struct:
        """The body of an answer that is not streamed."""
        turns = tuple(
            ChatChoice(output.index, AssistantMessage(output.text), output.finish_reason, self._scores(output))
            for output in outputs
        )
        return ChatBody(self._id, self._created, self._model, turns, usage)

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The frame that names the role."""
        return (self._chunk(ChunkChoice(index, Delta("assistant", ""), None), usage=usage),)

    def more(self, output: RequestOutput, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """A frame with more of a continuation."""
        if not output.text and not output.logprobs and output.finish_reason is None:
            return ()
        delta = Delta(content=output.text or UNSET)
        return (self._chunk(ChunkChoice(output.index, delta, output.finish_reason, self._scores(output)), usage=usage),)

    def closing(self, usage: UsageBody) -> Struct:
        """The frame without choices that tells the usage."""
        return self._chunk(usage=usage)

    def _scores(self, output: RequestOutput) -> ChatScores | None:
        return chat_scores(output.logprobs, self._token_bytes) if output.logprobs else None

    def _chunk(self, *choices: ChunkChoice, usage: UsageBody | UnsetType | None) -> ChatChunk:
        return ChatChunk(self._id, self._created, self._model, choices, usage)


def messages_of(request: ChatRequest) -> list[ChatMessage]:
    """The conversation as plain texts. Raises RequestRejected for parts that are not text."""
    if not request.messages:
        raise RequestRejected("messages is empty: give at least one", field="messages")
    return [
        ChatMessage(message.role, _text_of(message, field=f"messages[{index}].content"))
        for index, message in enumerate(request.messages)
    ]


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


def _text_of(message: MessageBody, *, field: str) -> str:
    match message.content:
        case None:
            return ""
        case str(text):
            return text
        case parts:
            for part in parts:
                if part.type != "text":
                    raise RequestRejected(
                        f"{field} has a part of type {part.type!r}: only text is offered", field=field
                    )
            return "".join(part.text or "" for part in parts)
