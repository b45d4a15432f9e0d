"""Log probabilities: whose they are, where they stand, and that they cost only those who ask."""

import math
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from tests.models.shapes import reference
from tokenspeed import SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The quick brown fox"


@torch.inference_mode()
def expected(folder: Path, prompt: list[int], output: list[int]) -> torch.Tensor:
    """The model's own distributions for each token of an output: log probabilities [tokens, vocabulary]."""
    logits = reference(folder)(torch.tensor([prompt + output])).logits[0]
    return logits[len(prompt) - 1 : -1].float().log_softmax(dim=-1)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
async def test_they_are_those_of_the_model(server: Any, model_folder: Path, temperature: float) -> None:
    """Equal to transformers' within 1e-3, for the token and for the likeliest ones; tokens are the same without."""
    engine = server.engine
    prompt = await engine.encode(PROMPT)
    params: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 12}
    scored = [o async for o in engine.generate(prompt, SamplingParams(**params, logprobs=5))]
    plain = [o async for o in engine.generate(prompt, SamplingParams(**params))]
    output = [token for each in scored for token in each.token_ids]
    assert output == [token for each in plain for token in each.token_ids]
    assert not any(each.logprobs for each in plain)
    tokens = [token for each in scored for token in each.logprobs]
    assert [token.token_id for token in tokens] == output
    scores = expected(model_folder, prompt, output)
    if temperature not in (0.0, 1.0):
        scores = (scores / temperature).log_softmax(dim=-1)
    for token, row in zip(tokens, scores, strict=True):
        assert token.logprob == pytest.approx(float(row[token.token_id]), abs=1e-3)
        values, ids = row.topk(5)
        assert [each for each, _ in token.top] == ids.tolist()
        assert [value for _, value in token.top] == pytest.approx(values.tolist(), abs=1e-3)


async def test_filters_show_in_them(server: Any) -> None:
    """With top-k 2, two tokens share all of it; JSON gets a number for what has no chance."""
    asked = {"prompt": PROMPT, "top_k": 2, "seed": 1, "max_tokens": 6, "logprobs": 3}
    _, answer = await server.post("completions", **asked)
    for top in answer["choices"][0]["logprobs"]["top_logprobs"]:
        values = sorted(top.values(), reverse=True)
        assert sum(math.exp(value) for value in values[:2]) == pytest.approx(1, abs=1e-5)
        assert values[2:] in ([-9999.0], [])


@pytest.mark.parametrize("stop", [None, "e"])
async def test_a_completions_stream_is_its_whole_answer(server: Any, stop: str | None) -> None:
    """H9: joined entry by entry, also where text is held back for a stop; offsets ascend; two choices."""
    asked = {"prompt": PROMPT, "n": 2, "seed": 5, "max_tokens": 30, "logprobs": 3, "stop": stop}
    _, whole = await server.post("completions", **asked)
    *chunks, _ = await server.stream("completions", **asked)
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        scores = [part["logprobs"] for part in parts if part["logprobs"]]
        for column, values in choice["logprobs"].items():
            assert [value for part in scores for value in part[column]] == values, column
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == len(offsets)
    assert sum(len(choice["logprobs"]["tokens"]) for choice in whole["choices"]) == whole["usage"]["completion_tokens"]


async def test_a_chat_stream_is_its_whole_answer(server: Any) -> None:
    """H9 through the official client, which parses strictly."""
    asked: dict[str, Any] = {
        "model": "small",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 10,
        "seed": 2,
        "logprobs": True,
        "top_logprobs": 2,
    }
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="-", max_retries=0, _strict_response_validation=True
    ) as client:
        whole = (await client.chat.completions.create(**asked)).choices[0].logprobs
        streamed = []
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            if chunk.choices[0].logprobs is not None:
                streamed += chunk.choices[0].logprobs.content or []
        bare = (await client.chat.completions.create(**{**asked, "top_logprobs": None})).choices[0].logprobs
    assert whole is not None
    assert bare is not None
    assert whole.content == streamed
    assert len(streamed) == 10
    assert all(len(token.top_logprobs) == 2 and token.bytes is not None for token in streamed)
    assert [token.top_logprobs for token in bare.content or []] == [[]] * 10


async def test_who_asks_shares_rounds_with_who_does_not(server: Any) -> None:
    """Three at once, one of them asking: each writes what it writes alone, and only one has scores."""
    asked: list[dict[str, Any]] = [
        {"temperature": 0, "max_tokens": 14},
        {"seed": 4, "max_tokens": 14, "logprobs": 1},
        {"seed": 9, "max_tokens": 14, "top_p": 0.9},
    ]
    prompt = await server.engine.encode(PROMPT)
    alone = [await _whole(server, prompt, fields) for fields in asked]
    generations = [server.engine.submit([prompt], SamplingParams(**fields))[0] for fields in asked]
    together = []
    for generation in generations:
        tokens: list[int] = []
        scores = 0
        while not generation.is_over:
            output = await generation.next()
            tokens += output.token_ids
            scores += len(output.logprobs)
        together.append((tokens, scores))
    assert [tokens for tokens, _ in together] == alone
    assert [scores for _, scores in together] == [0, 14, 0]


async def test_an_echo_goes_before_the_output(server: Any) -> None:
    """Whole and streamed, for each prompt and choice."""
    asked = {"prompt": [PROMPT, "ab"], "n": 2, "seed": 1, "max_tokens": 4}
    _, plain = await server.post("completions", **asked)
    _, echoed = await server.post("completions", **asked, echo=True)
    *chunks, _ = await server.stream("completions", **asked, echo=True)
    texts = [choice["text"] for choice in plain["choices"]]
    expected_texts = [PROMPT + texts[0], PROMPT + texts[1], "ab" + texts[2], "ab" + texts[3]]
    assert [choice["text"] for choice in echoed["choices"]] == expected_texts
    streamed = [""] * 4
    for chunk in chunks:
        for part in chunk["choices"]:
            streamed[part["index"]] += part["text"]
    assert streamed == expected_texts


async def _whole(server: Any, prompt: list[int], fields: dict[str, Any]) -> list[int]:
    outputs = [output async for output in server.engine.generate(prompt, SamplingParams(**fields))]
    return [token for output in outputs for token in output.token_ids]
