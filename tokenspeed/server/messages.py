"""From the messages of a request to a conversation that a chat template can render, checked turn by turn."""

import json
from typing import Any, Final

from control_plane.errors import RequestRejected
from tokenspeed.server.protocol import ChatRequest, MessageBody, ToolCallBody
from tokenspeed.server.tools import Tools
from tokenspeed.text.tokenizer import ChatMessage, ChatOptions

STANDARD_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def messages_of(request: ChatRequest, template: str) -> list[ChatMessage]:
    """The conversation as plain texts. Raises RequestRejected with the index of the message at fault."""
    if not request.messages:
        raise RequestRejected("messages is empty: give at least one", field="messages")
    return [
        _message_of(message, template, field=f"messages[{index}]") for index, message in enumerate(request.messages)
    ]


def options_of(request: ChatRequest, tools: Tools) -> ChatOptions:
    """How the conversation is rendered. Raises RequestRejected where two fields contradict each other."""
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise RequestRejected(
            "continue_final_message and add_generation_prompt exclude each other: set one of them",
            field="continue_final_message",
        )
    if continues and request.messages and request.messages[-1].role != "assistant":
        raise RequestRejected(
            "continue_final_message needs a last message of the role 'assistant' to continue",
            field="continue_final_message",
        )
    opens = not continues if request.add_generation_prompt is None else request.add_generation_prompt
    return ChatOptions(
        add_generation_prompt=opens,
        continue_final_message=continues,
        tools=tools.described,
        template_values=request.chat_template_kwargs or {},
    )


def check_shown(messages: list[ChatMessage], rendered: str) -> None:
    """Raise RequestRejected for a message that a template passed over: it would get an answer to nothing.

    Templates rewrite the turns of users, assistants and tools, but not those of other roles.
    """
    for index, message in enumerate(messages):
        if message.role not in ("user", "assistant", "tool") and message.content.strip() not in rendered:
            raise RequestRejected(
                f"messages[{index}] of the role {message.role!r} is ignored by the model's chat template: "
                "say it in a user's message",
                field=f"messages[{index}].role",
            )


def _message_of(message: MessageBody, template: str, *, field: str) -> ChatMessage:
    role = message.role
    if role not in STANDARD_ROLES and f"'{role}'" not in template and f'"{role}"' not in template:
        raise RequestRejected(
            f"{field}.role={role[:64]!r} is not known to the model: use one of {', '.join(STANDARD_ROLES[:5])}",
            field=f"{field}.role",
        )
    calls = message.tool_calls or ()
    if message.content is None and not (role == "assistant" and calls):
        raise RequestRejected(f"{field}.content is missing: give a text", field=f"{field}.content")
    return ChatMessage(
        role=role,
        content=_text_of(message, field=f"{field}.content"),
        name=message.name,
        tool_calls=tuple(map(_call_of, calls)),
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content,
    )


def _call_of(call: ToolCallBody) -> dict[str, Any]:
    """As templates read it: the arguments as an object, where they are one."""
    arguments: object = call.function.arguments
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        pass  # A model wrote it, and it may be no JSON: it is shown as it is.
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


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
                if part.text is None:
                    raise RequestRejected(f"{field} has a part without text: give one", field=field)
            return "".join(part.text or "" for part in parts)
