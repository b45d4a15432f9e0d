"""`POST /v1/completions`: prompts as texts or token ids, continued as they are."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from control_plane.errors import RequestRejected
from control_plane.messages import FinishReason
from tokenspeed.generation import RequestOutput, Usage
from tokenspeed.prompts import Prompt
from tokenspeed.server.answer import UsageBody, usage_body
from tokenspeed.server.protocol import CompletionRequest
from tokenspeed.server.token_scores import CompletionScores, TokenBytes, completion_scores

DEFAULT_MAX_TOKENS: Final = 16


class CompletionChoice(Struct, frozen=True):
    """One continuation, or more of it."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: CompletionScores | None = None


class CompletionBody(Struct, frozen=True):
    """A whole answer, and each frame of a streamed one."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: UsageBody | UnsetType | None = UNSET
    object: str = "text_completion"


class CompletionFormat:
    """How this endpoint answers."""

    names_events: Final = False

    def __init__(
        self, *, id: str, created: int, model: str, token_bytes: TokenBytes, echoes: Sequence[str] = ()
    ) -> None:
        """`echoes` has the text to put before each choice."""
        self._id = f"cmpl-{id}"
        self._created = created
        self._model = model
        self._token_bytes = token_bytes
        self._echoes = echoes

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> Struct:
        """The body of an answer that is not streamed."""
        return self._body(*(self._choice(output, self._echo(output.index)) for output in outputs), usage=usage)

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """The prompt where it is echoed."""
        echo = self._echo(index)
        return (self._body(CompletionChoice(index, echo, None), usage=usage),) if echo else ()

    def more(self, output: RequestOutput, usage: UsageBody | UnsetType | None) -> Sequence[Struct]:
        """A frame with more of a continuation."""
        if not output.text and not output.logprobs and output.finish_reason is None:
            return ()
        return (self._body(self._choice(output), usage=usage),)

    def closing(self, usage: UsageBody, *, is_usage_asked: bool) -> Sequence[Struct]:
        """The frame without choices that tells the usage."""
        return [self._body(usage=usage)] if is_usage_asked else ()

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _choice(self, output: RequestOutput, echo: str = "") -> CompletionChoice:
        scores = None
        if output.logprobs:
            scores = completion_scores(output.logprobs, self._token_bytes, offset=len(self._echo(output.index)))
        return CompletionChoice(output.index, echo + output.text, output.finish_reason, scores)

    def _body(self, *choices: CompletionChoice, usage: UsageBody | UnsetType | None) -> CompletionBody:
        return CompletionBody(self._id, self._created, self._model, choices, usage)


def prompts_of(request: CompletionRequest) -> list[Prompt]:
    """The prompts asked for: one text, one list of token ids, or a list of either. Raises RequestRejected."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestRejected("prompt is empty: give a text, token ids, or a list of either", field="prompt")
    texts = [entry for entry in prompt if isinstance(entry, str)]
    token_ids = [entry for entry in prompt if isinstance(entry, int)]
    lists = [entry for entry in prompt if isinstance(entry, list)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    if len(texts) == len(prompt) or len(lists) == len(prompt):
        return [*texts, *lists]
    raise RequestRejected("prompt mixes texts and token ids: give a list of one kind", field="prompt")


def echoes_of(
    request: CompletionRequest, prompts: Sequence[Prompt], decode: Callable[[Sequence[int]], str]
) -> list[str]:
    """The text that each choice begins with. Raises RequestRejected where more than text would have to be echoed."""
    if not request.echo:
        return []
    if request.logprobs:
        raise RequestRejected(
            "echo cannot be combined with logprobs: prompts are not scored; leave one out", field="echo"
        )
    texts = [prompt if isinstance(prompt, str) else decode(prompt) for prompt in prompts]
    return [text for text in texts for _ in range(request.n or 1)]


def only_echoes(request: CompletionRequest) -> bool:
    """Whether nothing is to be generated."""
    return bool(request.echo) and request.max_tokens == 0 and not request.stream


def echoed(form: CompletionFormat, *, prompt_tokens: int, choices: int) -> Struct:
    """The prompts as answers."""
    usage = usage_body(prompt_tokens=prompt_tokens, completion_tokens=0, cached_tokens=0)
    nothing = Usage(0, 0, 0)
    outputs = [RequestOutput("", index, "", (), FinishReason.LENGTH, nothing) for index in range(choices)]
    return form.whole(outputs, usage)


def logprobs_of(request: CompletionRequest) -> int | None:
    """How many of the likeliest tokens are wanted beside each one; None: no log probabilities at all."""
    if request.logprobs is True:
        raise RequestRejected("logprobs=true must be a whole number, or null", field="logprobs")
    return None if request.logprobs is None or request.logprobs is False else request.logprobs
