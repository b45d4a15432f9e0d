"""`POST /v1/completions`: prompts as texts or token ids, continued as they are."""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from control_plane.errors import RequestRejected
from control_plane.messages import FinishReason
from tokenspeed.generation import RequestOutput, Usage
from tokenspeed.prompts import Prompt
from tokenspeed.server.answer import UsageBody, usage_body
from tokenspeed.server.protocol import CompletionRequest

DEFAULT_MAX_TOKENS: Final = 16


class CompletionChoice(Struct, frozen=True):
    """One continuation, or more of it."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: None = None


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

    def __init__(self, *, id: str, created: int, model: str) -> None:
        self._id = f"cmpl-{id}"
        self._created = created
        self._model = model

    def whole(self, outputs: Sequence[RequestOutput], usage: UsageBody) -> Struct:
        """The body of an answer that is not streamed."""
        return self._body(
            *(CompletionChoice(output.index, output.text, output.finish_reason) for output in outputs), usage=usage
        )

    def opening(self, index: int, usage: UsageBody | UnsetType | None) -> Struct | None:
        """A completion has no opening."""
        return None

    def delta(
        self, index: int, text: str, finish_reason: FinishReason | None, usage: UsageBody | UnsetType | None
    ) -> Struct:
        """A frame with more of a continuation."""
        return self._body(CompletionChoice(index, text, finish_reason), usage=usage)

    def closing(self, usage: UsageBody) -> Struct:
        """The frame without choices that tells the usage."""
        return self._body(usage=usage)

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


def is_plain_echo(request: CompletionRequest) -> bool:
    """Whether only the prompt itself is asked for. Raises RequestRejected for an echo with more behind it."""
    if not request.echo:
        return False
    if request.max_tokens != 0 or request.stream or request.n not in (None, 1):
        raise RequestRejected(
            "echo=true is offered with max_tokens=0, n=1 and stream=false only: leave it out", field="echo"
        )
    return True


def echoed(form: CompletionFormat, prompts: Sequence[Sequence[int]], texts: Sequence[str]) -> Struct:
    """The prompts as answers: nothing is generated."""
    usage = usage_body(prompt_tokens=sum(map(len, prompts)), completion_tokens=0, cached_tokens=0)
    nothing = Usage(0, 0, 0)
    outputs = [RequestOutput("", index, text, (), FinishReason.LENGTH, nothing) for index, text in enumerate(texts)]
    return form.whole(outputs, usage)
