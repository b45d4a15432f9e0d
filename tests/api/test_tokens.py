"""`/tokenize` and `/detokenize`."""

from typing import Any

import pytest

from tests.server.conftest import Running

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def post(server: Running, path: str, **fields: Any) -> tuple[int, Any]:
    """These two have no version in their path."""
    async with server.http.post(f"{server.url}/{path}", json=fields) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("text", ["", "The quick brown fox", "müßig 😀 日本", "<|im_start|>user\n<think>", "x" * 5000])
async def test_a_text_there_and_back(server: Running, text: str) -> None:
    """Special tokens included, and longer than the context."""
    status, answer = await post(server, "tokenize", prompt=text, return_token_strs=True)
    assert status == 200
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    status, back = await post(server, "detokenize", tokens=answer["tokens"])
    assert (status, back) == (200, {"prompt": text})


async def test_a_conversation_is_what_a_chat_makes_of_it(server: Running) -> None:
    """As many tokens as the chat counts, and the text that the template wrote."""
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    _, answer = await post(server, "tokenize", **asked)
    _, chat = await server.post("chat/completions", **asked, max_tokens=1)
    assert answer["count"] == chat["usage"]["prompt_tokens"]
    _, back = await post(server, "detokenize", tokens=answer["tokens"])
    assert back["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    _, closed = await post(server, "tokenize", **asked, add_generation_prompt=False)
    assert closed["count"] < answer["count"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("tokenize", {"prompt": 5}, "prompt"),
        ("tokenize", {"prompt": "x" * 900_000}, "prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [320]}, "tokens"),
        ("detokenize", {"tokens": [5, -1]}, "tokens"),
        ("detokenize", {"tokens": ["x"]}, "tokens[0]"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_neither_is_refused(server: Running, path: str, fields: dict[str, Any], param: str) -> None:
    """400 with the field; 404 for a model that is not served."""
    status, answer = await post(server, path, **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert (await post(server, path, model="other"))[0] == 404
