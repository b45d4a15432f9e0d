"""The official client, with its own strict parsing (H5)."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import StampOptions, StampRunner

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def client(start: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    _, url = await start()
    async with connect(url) as connected:
        yield connected


def connect(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True, timeout=60
    )


async def test_models(client: openai.AsyncOpenAI) -> None:
    """The list and one of it."""
    listed = [model.id async for model in client.models.list()]
    assert listed == ["stamp"]
    assert (await client.models.retrieve("stamp")).owned_by == "tokenspeed"


async def test_whole_answers(client: openai.AsyncOpenAI) -> None:
    """Chat and completions parse strictly, usage included."""
    chat = await client.chat.completions.create(model="stamp", messages=MESSAGES, max_tokens=4)
    assert (chat.choices[0].finish_reason, chat.choices[0].message.role) == ("length", "assistant")
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 4
    completion = await client.completions.create(model="stamp", prompt="hello", max_tokens=4)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 5


async def test_a_strict_stream_with_two_choices(client: openai.AsyncOpenAI) -> None:
    """H5: choices of different lengths; a role first, one reason each, null before it."""
    words = (await client.completions.create(model="stamp", prompt="x", max_tokens=40, seed=5)).choices[0].text.split()
    stream = await client.chat.completions.create(
        model="stamp",
        messages=MESSAGES,
        n=2,
        seed=5,
        max_tokens=40,
        stop=[f" {words[0]}"],
        stream=True,
        stream_options={"include_usage": True},
    )
    roles: dict[int, list[Any]] = {0: [], 1: []}
    reasons: dict[int, list[Any]] = {0: [], 1: []}
    usage = None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            roles[choice.index].append(choice.delta.role)
            reasons[choice.index].append(choice.finish_reason)
    for index in (0, 1):
        assert roles[index] == ["assistant"] + [None] * (len(roles[index]) - 1)
        assert reasons[index][:-1] == [None] * (len(reasons[index]) - 1)
        assert reasons[index][-1] in ("stop", "length")
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_the_streaming_helper(client: openai.AsyncOpenAI) -> None:
    """It assembles the whole from full chunks, and insists on how they look."""
    free = await client.chat.completions.create(model="stamp", messages=MESSAGES, temperature=0, max_tokens=9)
    text = free.choices[0].message.content
    assert text is not None
    last = text.split()[-1]
    async with client.chat.completions.stream(
        model="stamp", messages=MESSAGES, temperature=0, stop=f" {last}"
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == text[: text.index(f" {last}")]


async def test_fields_that_only_load_generators_send(client: openai.AsyncOpenAI) -> None:
    """The common extensions are honoured, unknown ones ignored."""
    extra = {"ignore_eos": True, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [], "x": {}}
    answer = await client.completions.create(model="stamp", prompt="a", max_tokens=3, extra_body=extra)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_errors_have_the_classes_that_programs_catch(start: Any) -> None:
    """400, 401, 404 and 429 by status, each with its message and field."""
    _, url = await start(api_key="key", max_batch_size=1, max_queued_requests=0)
    async with connect(url) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.retrieve("stamp")
    async with connect(url).with_options(api_key="key") as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="stamp", prompt="a", max_tokens=0)
        assert caught.value.param == "max_tokens"
        with pytest.raises(openai.NotFoundError, match="'gpt' is not served here"):
            await client.completions.create(model="gpt", prompt="a")
        stream = await client.completions.create(model="stamp", prompt="a", max_tokens=2000, stream=True)
        with pytest.raises(openai.RateLimitError) as busy:
            await client.completions.create(model="stamp", prompt="a")
        assert busy.value.response.headers["Retry-After"] == "1"
        await stream.close()


async def test_an_error_in_a_stream_is_raised(start: Any) -> None:
    """H6: the client does not take a cut answer for a complete one."""
    runner = FaultyRunner(StampRunner(StampOptions(max_context_tokens=2048)), fail_rounds=(4,))
    _, url = await start(runner=runner)
    async with connect(url) as client:
        stream = await client.chat.completions.create(model="stamp", messages=MESSAGES, max_tokens=9, stream=True)
        with pytest.raises(openai.APIError, match="batch 4 was told to fail"):
            async for _ in stream:
                pass
