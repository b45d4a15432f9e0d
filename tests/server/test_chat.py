"""`POST /v1/chat/completions`."""

from typing import Any

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
RENDERED = "system: s\nuser: hello\nassistant:"


async def test_a_whole_answer(server: Any) -> None:
    """The conversation goes through the model's template, and the answer is the assistant's turn."""
    status, answer = await server.post("chat/completions", messages=MESSAGES, max_tokens=4, temperature=0)
    _, plain = await server.post("completions", prompt=RENDERED, max_tokens=4, temperature=0)
    assert status == 200
    assert (answer["object"], answer["id"][:9]) == ("chat.completion", "chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"content": plain["choices"][0]["text"], "role": "assistant", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_a_streamed_answer_names_its_role_once(server: Any) -> None:
    """H5: the role in the first delta of each choice only, one reason each, `[DONE]` once and last."""
    *chunks, done = await server.stream("chat/completions", messages=MESSAGES, n=2, seed=1, max_tokens=5)
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    _, whole = await server.post("chat/completions", messages=MESSAGES, n=2, seed=1, max_tokens=5)
    for index in (0, 1):
        mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert [part["delta"].get("role") for part in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["length"]
        text = "".join(part["delta"].get("content", "") for part in mine)
        assert text == whole["choices"][index]["message"]["content"]


async def test_parts_of_text_are_joined(server: Any) -> None:
    """A message may come as a list of parts."""
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    asked = {"max_tokens": 3, "temperature": 0}
    _, joined = await server.post("chat/completions", messages=[{"role": "user", "content": parts}], **asked)
    _, plain = await server.post("chat/completions", messages=[{"role": "user", "content": "hello"}], **asked)
    assert joined["choices"] == plain["choices"]


async def test_the_newer_limit_goes_first(serve: Any) -> None:
    """`max_completion_tokens` replaced `max_tokens`; without either, as many as fit."""
    server = await serve(max_context_tokens=128)
    for limits, expected in (({"max_completion_tokens": 2, "max_tokens": 9}, 2), ({"max_tokens": 3}, 3)):
        _, answer = await server.post("chat/completions", messages=MESSAGES, **limits)
        assert answer["usage"]["completion_tokens"] == expected
    _, answer = await server.post("chat/completions", messages=MESSAGES)
    assert answer["usage"]["total_tokens"] == 128


async def test_usage_at_the_end_or_all_the_way(server: Any) -> None:
    """Clients that count by usage get it as they ask: null before the last frame, or running numbers."""
    *chunks, last, _ = await server.stream(
        "chat/completions", messages=MESSAGES, max_tokens=3, stream_options={"include_usage": True}
    )
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    assert all(chunk.get("usage") is None for chunk in chunks)
    *chunks, _ = await server.stream(
        "chat/completions", messages=MESSAGES, max_tokens=3, stream_options={"continuous_usage_stats": True}
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3


async def test_without_asking_no_usage_is_streamed(server: Any) -> None:
    """Strict clients know no such field."""
    *chunks, _ = await server.stream("chat/completions", messages=MESSAGES, max_tokens=2)
    assert not any("usage" in chunk for chunk in chunks)
