"""Tools: described by the model's template, called as it marks calls, and forced by a grammar."""

import json
from typing import Any

import openai
import pytest

from tests.server.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER: list[Any] = [{"role": "user", "content": "how is the weather"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function with these parameters, all needed."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"the {name}", "parameters": parameters}}


TOOLS: list[Any] = [
    tool("weather", city={"enum": ["Oslo", "Rome"]}, days={"type": "integer", "minimum": 1, "maximum": 9}),
    tool("time", zone={"type": "string", "maxLength": 3}),
]


def client_of(server: Running) -> openai.AsyncOpenAI:
    """The official client, which parses strictly."""
    return openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="-", max_retries=0, _strict_response_validation=True, timeout=60
    )


def check(name: str, arguments: str) -> None:
    """Whether a call is one that the tools allow."""
    value = json.loads(arguments)
    if name == "weather":
        assert value["city"] in ("Oslo", "Rome")
        assert 1 <= value["days"] <= 9
    else:
        assert name == "time"
        assert len(value["zone"]) <= 3


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}], ids=str)
@pytest.mark.parametrize("parallel", [None, False])
async def test_a_forced_call_is_one(server: Running, choice: Any, parallel: bool | None) -> None:
    """Whole and streamed are the same calls, each with a name among the tools and arguments that fit."""
    asked: dict[str, Any] = {
        "model": "small",
        "messages": USER,
        "tools": TOOLS,
        "tool_choice": choice,
        "seed": 5,
        "max_tokens": 900,
    }
    if parallel is not None:
        asked["parallel_tool_calls"] = parallel
    async with client_of(server) as client:
        (whole,) = (await client.chat.completions.create(**asked)).choices
        calls: dict[int, list[str]] = {}
        reason = None
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            (part,) = chunk.choices
            reason = part.finish_reason or reason
            for call in part.delta.tool_calls or []:
                assert call.function is not None
                if call.index not in calls:
                    assert call.id
                    calls[call.index] = [call.function.name or "", ""]
                calls[call.index][1] += call.function.arguments or ""
    assert whole.message.content is None
    assert (whole.finish_reason, reason) == ("tool_calls", "tool_calls")
    given = [call.function for call in whole.message.tool_calls or [] if call.type == "function"]
    assert [[call.name, call.arguments] for call in given] == list(calls.values())
    assert given
    for call in given:
        check(call.name, call.arguments)
    if choice != "required":
        assert [call.name for call in given] == ["time"]
    if parallel is False:
        assert len(given) == 1


async def test_a_call_of_its_own_accord_is_found(server: Running) -> None:
    """`auto`: what the model writes between the marks is a call; here a grammar stands in for a model that can."""
    begin, end = (server.engine.tokenizer.lark_of(mark) for mark in ("<tool_call>", "</tool_call>"))
    think, answer = (server.engine.tokenizer.lark_of(mark) for mark in ("<think>", "</think>"))
    call = '"{\\"name\\": \\"time\\", \\"arguments\\": {\\"zone\\": \\"CET\\"}}"'
    lark = f'start: {think} "\\nhm\\n" {answer} "\\n\\nI look\\n" {begin} "\\n" {call} "\\n" {end}'
    asked = {"messages": USER, "max_tokens": 200, "guided_grammar": lark, "tools": TOOLS}
    for choice in ({}, {"tool_choice": "auto"}):
        _, whole = await server.post("chat/completions", **asked, **choice)
        (given,) = whole["choices"]
        assert given["finish_reason"] == "tool_calls"
        assert given["message"]["reasoning_content"] == "hm"
        assert given["message"]["content"] == "I look"
        (found,) = given["message"]["tool_calls"]
        assert found["function"] == {"name": "time", "arguments": '{"zone": "CET"}'}
    *chunks, _ = await server.stream("chat/completions", **asked)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "I look"
    pieces = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert (pieces[0]["function"]["name"], pieces[0]["type"]) == ("time", "function")
    assert "".join(piece["function"].get("arguments", "") for piece in pieces) == '{"zone": "CET"}'
    assert len(pieces) > 4
    for fields in ({"tool_choice": "none"}, {"tools": None}):
        _, whole = await server.post("chat/completions", {**asked, **fields})
        assert "tool_calls" not in whole["choices"][0]["message"]
        assert "<tool_call>" in whole["choices"][0]["message"]["content"]


async def test_a_thought_that_the_prompt_begins(server: Running) -> None:
    """The template opens it: what comes before its end is reasoning, and only what follows must match."""
    end = (await server.engine.encode("</think>"))[0]
    asked = {
        "messages": USER,
        "chat_template_kwargs": {"enable_thinking": True},
        "max_tokens": 300,
        "temperature": 0,
        "logit_bias": {str(end): 20},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 7}}},
    }
    _, answer = await server.post("chat/completions", **asked)
    message = answer["choices"][0]["message"]
    assert message["content"] == "7"
    asked["tools"], asked["tool_choice"] = TOOLS[1:], "required"
    del asked["response_format"]
    _, answer = await server.post("chat/completions", **asked)
    check(**answer["choices"][0]["message"]["tool_calls"][0]["function"])


async def test_a_turn_that_called_goes_back_through_the_template(server: Running) -> None:
    """Calls, their results and old thoughts are rendered; a whole conversation with the official client's objects."""
    async with client_of(server) as client:
        first = await client.chat.completions.create(
            model="small", messages=USER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300
        )
        message = first.choices[0].message
        (call,) = message.tool_calls or []
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        turns: list[Any] = [*USER, message, result]
        second = await client.chat.completions.create(model="small", messages=turns, tools=TOOLS, max_tokens=3)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
        ({"tools": TOOLS + TOOLS}, "tools[2]"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [tool("a", b={"type": "nothing"})], "tool_choice": "required"}, "tools"),
        ({"functions": [{}]}, "functions"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
async def test_malformed_tools_are_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    """400 with the field."""
    status, answer = await server.post("chat/completions", messages=USER, **fields)
    assert (status, answer["error"]["param"]) == (400, param), answer
