"""`/v1/responses` as programs on the official client call it."""

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.api.test_tools import TOOLS, check, client_of
from tests.server.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLAT: list[Any] = [{"type": "function", "strict": True, **tool["function"]} for tool in TOOLS]
TURNS: list[Any] = [
    {"role": "user", "content": "hello"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
]


async def test_text_in_and_text_out(server: Running) -> None:
    """The same turn as a chat writes, with usage, an honest status and instructions as the system's words."""
    async with client_of(server) as client:
        response = await client.responses.create(
            model="small", input=TURNS, instructions="be brief", max_output_tokens=8, temperature=0
        )
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "and now?"},
    ]
    _, chat = await server.post("chat/completions", messages=messages, max_tokens=8, temperature=0)
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.usage is not None
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert response.usage.output_tokens == 8
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )


async def test_events_add_up_to_the_response(server: Running) -> None:
    """Numbered without a gap, each item begun and ended once, deltas joined are the text; the last one has it all."""
    (end,) = server.engine.specs.stop_token_ids
    ends = {"min_tokens": 9, "logit_bias": {str(end): 100}}
    asked: dict[str, Any] = {"model": "small", "input": "hello", "temperature": 0, "extra_body": ends}
    async with client_of(server) as client:
        whole = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        async with client.responses.stream(**asked) as stream:
            final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    types = [event.type for event in events if not event.type.endswith(".delta")]
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == final.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.total_tokens == whole.usage.total_tokens


class Weather(BaseModel):
    """A shape for `responses.parse`."""

    is_sunny: bool
    degrees: int


async def test_a_shape_is_kept(server: Running) -> None:
    """Structured output as the client's own helper asks for it."""
    async with client_of(server) as client:
        parsed = await client.responses.parse(
            model="small", input="hello", text_format=Weather, extra_body={"seed": 1}, max_output_tokens=400
        )
    if parsed.status == "completed":  # A random model may count degrees for ever.
        assert isinstance(parsed.output_parsed, Weather)
    body = {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"const": [1, "a"]}}}}
    _, answer = await server.post("responses", body)
    assert answer["output"][0]["content"][0]["text"] == '[1, "a"]'
    assert answer["status"] == "completed"


async def test_calls_are_items(server: Running) -> None:
    """A forced call, streamed and not; its result goes back as an item."""
    asked: dict[str, Any] = {
        "model": "small",
        "input": "how is the weather",
        "tools": FLAT,
        "tool_choice": {"type": "function", "name": "weather"},
        "extra_body": {"seed": 4},
        "max_output_tokens": 400,
    }
    async with client_of(server) as client:
        response = await client.responses.create(**asked)
        (call,) = response.output
        assert call.type == "function_call"
        check(call.name, call.arguments)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert done.arguments == call.arguments
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(deltas) == call.arguments
        turns: list[Any] = [
            {"role": "user", "content": "how is the weather"},
            *[item.model_dump(exclude_none=True) for item in response.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ]
        after = await client.responses.create(model="small", input=turns, tools=FLAT, max_output_tokens=2)
    assert after.usage is not None
    assert response.usage is not None
    assert after.usage.input_tokens > response.usage.input_tokens


async def test_thoughts_are_an_item_of_their_own(server: Running) -> None:
    """Reasoning comes before the message, and its tokens are counted."""
    mark = server.engine.tokenizer.lark_of
    lark = f'start: {mark("<think>")} "\\nhm hm\\n" {mark("</think>")} "\\n\\nyes"'
    _, answer = await server.post("responses", input="x", guided_grammar=lark)
    reasoning, message = answer["output"]
    assert (reasoning["type"], reasoning["content"][0]["text"]) == ("reasoning", "hm hm")
    assert message["content"][0]["text"] == "yes"
    assert 1 <= answer["usage"]["output_tokens_details"]["reasoning_tokens"] < answer["usage"]["output_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"role": "bard", "content": "x"}]}, "input"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "x" * 5000}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "reasoning": {"effort": "high"}}, "reasoning"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": "x", "tools": FLAT, "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": "x", "include": ["message.output_text.logprobs"]}, "include"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
async def test_what_is_not_offered_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    """400 with the field as the client wrote it; nulls and unknown fields are nothing."""
    status, answer = await server.post("responses", {"stream": True, **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer
    nulls = dict.fromkeys(["instructions", "tools", "tool_choice", "text", "include", "reasoning", "metadata"])
    status, _ = await server.post("responses", input="x", max_output_tokens=1, store=True, made_up=[1], **nulls)
    assert status == 200


async def test_an_answer_that_cannot_be_finished_says_so(server: Running) -> None:
    """H6: an error after the headers is an event, and the client raises it."""

    async def read(stream: Any) -> None:
        async for event in stream:
            if event.type == "response.output_text.delta":
                await server.http.delete(f"{server.url}/v1/requests/gone")

    asked: dict[str, Any] = {"extra_body": {"ignore_eos": True}, "extra_headers": {"X-Request-ID": "gone"}}
    async with client_of(server) as client:
        stream = await client.responses.create(model="small", input="x", stream=True, **asked)
        with pytest.raises(openai.APIError, match="cancelled"):
            await read(stream)
