"""What clients may ask: request bodies, parsed strictly where a field is known and silently where it is not.

Explicit nulls mean "not given". Fields that ask for something this server does not offer are known by name, so that
they are refused instead of ignored.
"""

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from control_plane.errors import RequestRejected
from tokenspeed.sampling import SamplingParams

T = TypeVar("T", bound="GenerationRequest")

MAX_TOKEN_ID_DIGITS: Final = 10

# Fields of a request that are passed on as they come.
_SAME_NAMES: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "min_tokens",
)


class StreamOptions(Struct, frozen=True):
    """When a stream tells its usage: once at the end, in every chunk, or not at all."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SchemaBody(Struct, frozen=True):
    """A JSON schema with a name. What is produced always matches it: `strict` changes nothing."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """What the output must look like: `text`, `json_object`, or `json_schema` with the schema."""

    type: str
    json_schema: SchemaBody | None = None


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """The fields that both ways of asking share. Those named as in SamplingParams mean what they mean there."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    n: int | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | int | None = None

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def unoffered(self) -> dict[str, str]:
        """Fields that ask for what this server does not offer, and why it does not."""
        return {}


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str | int | list[int]] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    def unoffered(self) -> dict[str, str]:
        """See `GenerationRequest.unoffered`."""
        reasons = {}
        if self.best_of not in (None, 1, self.n):
            reasons["best_of"] = "continuations are not ranked here: ask for n of them with logprobs, and choose"
        if self.suffix:
            reasons["suffix"] = "models here continue a prompt and do not fill gaps: leave it out"
        return reasons


class ContentPart(Struct, frozen=True):
    """One part of a message. Only parts of type `text` are offered."""

    type: str
    text: str | None = None


class CalledFunction(Struct, frozen=True):
    """A function and the JSON text of its arguments."""

    name: str
    arguments: str = "{}"


class ToolCallBody(Struct, frozen=True):
    """A call that the assistant made in an earlier turn."""

    function: CalledFunction
    id: str | None = None
    type: str = "function"


class MessageBody(Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionBody(Struct, frozen=True):
    """A function that the model may call. Without `parameters` it takes none."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Struct, frozen=True):
    """A tool; only functions are offered."""

    type: str
    function: FunctionBody | None = None


class NamedFunction(Struct, frozen=True):
    """The name alone."""

    name: str


class ToolChoice(Struct, frozen=True):
    """The one tool that must be called."""

    function: NamedFunction
    type: str = "function"


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[MessageBody] | None = None
    max_completion_tokens: int | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def unoffered(self) -> dict[str, str]:
        """See `GenerationRequest.unoffered`."""
        return {"functions": "it was replaced by tools: send those"} if self.functions else {}


def parse(body: bytes, kind: type[T]) -> T:
    """A request body. Raises msgspec.ValidationError or DecodeError, which become HTTP 400."""
    return msgspec.json.decode(body, type=kind)


def sampling_params(
    request: GenerationRequest, *, max_tokens: int | None, logprobs: int | None, grammar: str | None = None
) -> SamplingParams:
    """What the request says about sampling. Raises RequestRejected naming each field that is out of range."""
    given: dict[str, Any] = {name: value for name in _SAME_NAMES if (value := getattr(request, name)) is not None}
    return SamplingParams(
        **given,
        max_tokens=max_tokens,
        logprobs=logprobs,
        grammar=grammar,
        logit_bias=_biases(request.logit_bias or {}),
    )


def refuse_unoffered(request: GenerationRequest) -> None:
    """Raise RequestRejected when a field asks for what this server does not offer."""
    for name, reason in request.unoffered().items():
        value = _short(getattr(request, name))
        raise RequestRejected(f"{name}={value} is not offered by this server: {reason}", field=name)


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """Biases by token id, which JSON can write only as a text."""
    for name in given:
        if not name.isdecimal() or not name.isascii() or len(name) > MAX_TOKEN_ID_DIGITS:
            raise RequestRejected(
                f"logit_bias has the key {_short(name)}: its keys are token ids in decimal digits", field="logit_bias"
            )
    return tuple(sorted((int(name), bias) for name, bias in given.items()))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
