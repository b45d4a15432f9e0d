"""Conversations that no template could render, and the two ways to end one."""

from typing import Any

import pytest

from tests.server.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([HELLO, {"role": "user"}], "messages[1].content"),
        ([{"role": "system"}, HELLO], "messages[0].content"),
        ([HELLO, {"role": "assistant", "content": None}, HELLO], "messages[1].content"),
        ([HELLO, {"role": "assistant", "content": None, "tool_calls": []}, HELLO], "messages[1].content"),
        ([HELLO, {"role": "tool"}], "messages[1].content"),
        ([HELLO, {"role": "bard", "content": "x"}], "messages[1].role"),
        ([HELLO, HELLO, {"role": "developer", "content": "x"}, HELLO], "messages[2]"),
        ([HELLO, {"role": "user", "content": [{"type": "image_url"}]}], "messages[1].content"),
        ([HELLO, {"role": "user", "content": [{"type": "text"}]}], "messages[1].content"),
        ([HELLO, {"content": "x"}], "messages[1]"),
    ],
    ids=lambda value: str(value)[-60:] if isinstance(value, list) else "",
)
async def test_a_message_that_says_nothing_or_nobody_knows(server: Running, messages: list[Any], param: str) -> None:
    """400 with the index of the message, instead of an answer to nothing."""
    for stream in (False, True):
        status, answer = await server.post("chat/completions", messages=messages, stream=stream)
        assert (status, answer["error"]["param"]) == (400, param), answer
    status, _ = await server.post("chat/completions", messages=[HELLO], max_tokens=1)
    assert status == 200


async def test_a_final_message_goes_on(server: Running) -> None:
    """`continue_final_message`: the prompt ends inside the assistant's turn; without either, behind it."""
    turns = [HELLO, {"role": "assistant", "content": "The quick"}]
    head = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nThe quick"
    for fields, prompt in (
        ({"continue_final_message": True}, head),
        ({"continue_final_message": True, "add_generation_prompt": False}, head),
        ({"add_generation_prompt": False}, f"{head}<|im_end|>\n"),
        ({}, f"{head}<|im_end|>\n<|im_start|>assistant\n"),
        ({"add_generation_prompt": True}, f"{head}<|im_end|>\n<|im_start|>assistant\n"),
    ):
        asked = {"temperature": 0, "max_tokens": 6}
        _, chat = await server.post("chat/completions", messages=turns, **asked, **fields)
        _, plain = await server.post("completions", prompt=prompt, **asked)
        assert chat["choices"][0]["message"]["content"] == plain["choices"][0]["text"]
        assert chat["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
    ids=str,
)
async def test_fields_that_contradict_each_other(server: Running, fields: dict[str, Any], param: str) -> None:
    """Checked against each other and against the messages."""
    status, answer = await server.post("chat/completions", messages=[HELLO], **fields)
    assert (status, answer["error"]["param"]) == (400, param), answer


async def test_values_for_the_template_reach_it(server: Running) -> None:
    """`chat_template_kwargs`."""
    _, plain = await server.post("chat/completions", messages=[HELLO], max_tokens=1)
    _, thinking = await server.post(
        "chat/completions", messages=[HELLO], max_tokens=1, chat_template_kwargs={"enable_thinking": True}
    )
    assert thinking["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + 2
