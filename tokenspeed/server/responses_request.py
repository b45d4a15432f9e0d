"""What `POST /v1/responses` takes, as the chat that it is: instructions, turns and tools in another writing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct, structs

from control_plane.errors import RequestRejected
from tokenspeed.server.protocol import (
    CalledFunction,
    ChatRequest,
    GenerationRequest,
    MessageBody,
    NamedFunction,
    ResponseFormat,
    SchemaBody,
    ToolCallBody,
    ToolChoice,
)

TEXT_PARTS: Final = ("input_text", "output_text", "text")


class InputPart(Struct, frozen=True):
    """One part of an item. Only text is offered."""

    type: str
    text: str | None = None


class InputItem(Struct, frozen=True):
    """A message, a call that the model made, or what that call gave."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class TextFormat(Struct, frozen=True):
    """As `response_format` of a chat, written flat."""

    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None


class TextOptions(Struct, frozen=True):
    """What the text must look like."""

    format: TextFormat | None = None


class FlatChoice(Struct, frozen=True):
    """The one function that must be called."""

    type: str
    name: str | None = None


class ReasoningOptions(Struct, frozen=True):
    """How much the model should think."""

    effort: str | None = None


class ResponsesRequest(GenerationRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. Nothing is stored: each request brings its whole conversation."""

    input: str | list[InputItem] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    truncation: str | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None

    def unoffered(self) -> dict[str, str]:
        """See `GenerationRequest.unoffered`."""
        stateless = "nothing is stored here: send the whole conversation as input"
        asked = {
            "previous_response_id": (self.previous_response_id is not None, stateless),
            "conversation": (self.conversation is not None, stateless),
            "background": (bool(self.background), "there is no later request that could fetch the answer"),
            "truncation": (self.truncation not in (None, "disabled"), "shorten the input yourself"),
            "top_logprobs": (bool(self.top_logprobs), "ask for them on /v1/chat/completions"),
            "include": (
                "message.output_text.logprobs" in (self.include or ()),
                "ask for log probabilities on /v1/chat/completions",
            ),
            "n": (self.n not in (None, 1), "a response has one answer: send several requests"),
            "reasoning": (
                self.reasoning is not None and self.reasoning.effort is not None,
                "a model thinks as its template says: use chat_template_kwargs on /v1/chat/completions",
            ),
        }
        return {name: reason for name, (is_asked, reason) in asked.items() if is_asked}


def chat_of(request: ResponsesRequest) -> ChatRequest:
    """The same as a chat. Raises RequestRejected for items that have no place in one."""
    shared = {name: getattr(request, name) for name in GenerationRequest.__struct_fields__}
    shared["response_format"] = _format_of(request) or request.response_format
    return ChatRequest(
        **{**shared, "max_tokens": None},
        messages=_messages_of(request),
        max_completion_tokens=request.max_output_tokens,
        tools=[_tool_of(tool, index) for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_choice_of(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
    )


@contextmanager
def in_its_own_words() -> Iterator[None]:
    """What is wrong with the chat is wrong with the field that it was made of."""
    try:
        yield
    except RequestRejected as error:
        names = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}
        head = error.field.split("[")[0].split(".")[0]
        error.field = names.get(head, error.field)
        raise


def _messages_of(request: ResponsesRequest) -> list[MessageBody]:
    if not request.input:
        raise RequestRejected("input is empty: give a text, or items", field="input")
    messages = [MessageBody("system", request.instructions)] if request.instructions else []
    if isinstance(request.input, str):
        return [*messages, MessageBody("user", request.input)]
    for index, item in enumerate(request.input):
        field = f"input[{index}]"
        match item.type:
            case "message":
                if item.role is None:
                    raise RequestRejected(f"{field} has no role", field=field)
                role = "system" if item.role == "developer" else item.role
                messages.append(MessageBody(role, _text_of(item.content, field=f"{field}.content")))
            case "function_call":
                if item.name is None:
                    raise RequestRejected(f"{field} names no function", field=field)
                call = ToolCallBody(CalledFunction(item.name, item.arguments or "{}"), id=item.call_id)
                last = messages[-1] if messages else None
                if last is not None and last.role == "assistant":
                    messages[-1] = structs.replace(last, tool_calls=[*(last.tool_calls or ()), call])
                else:
                    messages.append(MessageBody("assistant", tool_calls=[call]))
            case "function_call_output":
                text = _text_of(item.output, field=f"{field}.output")
                messages.append(MessageBody("tool", text, tool_call_id=item.call_id))
            case "reasoning":
                continue  # Templates drop old thoughts.
            case other:
                raise RequestRejected(f"{field} is of type {other[:64]!r}, which is not offered here", field=field)
    return messages


def _text_of(content: str | list[InputPart] | None, *, field: str) -> str:
    if content is None:
        raise RequestRejected(f"{field} is missing: give a text", field=field)
    if isinstance(content, str):
        return content
    for part in content:
        if part.type not in TEXT_PARTS or part.text is None:
            raise RequestRejected(f"{field} has a part of type {part.type[:64]!r}: only text is offered", field=field)
    return "".join(part.text or "" for part in content)


def _format_of(request: ResponsesRequest) -> ResponseFormat | None:
    form = request.text.format if request.text else None
    if form is None:
        return None
    return ResponseFormat(form.type, SchemaBody(form.name, form.schema) if form.type == "json_schema" else None)


def _tool_of(tool: dict[str, Any], index: int) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise RequestRejected(f"tools[{index}] must be of type 'function'", field=f"tools[{index}]")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _choice_of(choice: str | FlatChoice | None) -> str | ToolChoice | None:
    if not isinstance(choice, FlatChoice):
        return choice
    if choice.type != "function" or choice.name is None:
        raise RequestRejected("tool_choice must name a function", field="tool_choice")
    return ToolChoice(NamedFunction(choice.name))
