"""`POST /v1/completions`."""

from typing import Any

import pytest


async def test_a_whole_answer(server: Any) -> None:
    """Everything that clients read is there, and the numbers add up."""
    status, answer = await server.post("completions", prompt="hello", max_tokens=3, temperature=0)
    assert status == 200
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "stamp")
    (choice,) = answer["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert len(choice["text"].split()) == 3
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_sixteen_tokens_unless_told_otherwise(server: Any) -> None:
    """The default of the API."""
    _, answer = await server.post("completions", prompt="hello", max_tokens=None)
    assert answer["usage"]["completion_tokens"] == 16


async def test_more_than_fits_means_as_many_as_fit(serve: Any) -> None:
    """H8: a huge ceiling is no error, on both ways to ask."""
    server = await serve(max_context_tokens=128)
    for max_tokens in (2**31 - 1, 10**18):
        _, answer = await server.post("completions", prompt="hello", max_tokens=max_tokens)
        assert answer["usage"]["total_tokens"] == 128
        messages = [{"role": "user", "content": "hello"}]
        _, answer = await server.post("chat/completions", messages=messages, max_tokens=max_tokens)
        assert answer["usage"]["total_tokens"] == 128


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98], [[97, 98]]], ids=str)
async def test_a_prompt_in_every_form(server: Any, prompt: object) -> None:
    """A text, token ids, and lists of one of either are the same prompt."""
    _, answer = await server.post("completions", prompt=prompt, max_tokens=4, temperature=0)
    _, reference = await server.post("completions", prompt="ab", max_tokens=4, temperature=0)
    assert answer["choices"] == reference["choices"]
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("prompts", [["a", "bb", "ccc"], [[97], [98, 98], [99, 99, 99]]], ids=["texts", "ids"])
async def test_every_choice_keeps_its_index(server: Any, prompts: list[Any]) -> None:
    """H13: three prompts with two choices each, streamed and not; each prompt counts once, each choice ends once."""
    asked = {"prompt": prompts, "n": 2, "seed": 7, "max_tokens": 12, "stop": [" w7", " w1"]}
    _, whole = await server.post("completions", **asked)
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert whole["usage"]["prompt_tokens"] == 6

    *streamed, usage, done = await server.stream("completions", **asked, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        mine = [part for frame in streamed for part in frame["choices"] if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        reasons = [part["finish_reason"] for part in mine]
        assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]

    for index, prompt in enumerate(prompts):
        _, alone = await server.post("completions", **{**asked, "prompt": prompt, "n": 1})
        assert alone["choices"][0]["text"] == whole["choices"][2 * index]["text"]


async def test_a_seed_makes_draws_repeatable(server: Any) -> None:
    """The same request gives the same tokens; without a seed it does not, and greedy needs none."""
    asked = {"prompt": "hello", "max_tokens": 12}
    with_seed = [(await server.post("completions", **asked, seed=-5))[1]["choices"] for _ in range(2)]
    without = [(await server.post("completions", **asked))[1]["choices"] for _ in range(2)]
    greedy = [(await server.post("completions", **asked, temperature=0))[1]["choices"] for _ in range(2)]
    assert with_seed[0] == with_seed[1]
    assert without[0] != without[1]
    assert greedy[0] == greedy[1]


async def test_a_stop_string_cuts_text_and_usage_alike(server: Any) -> None:
    """H1, G2: the text ends before the stop, usage with the token that completes it, streamed or not."""
    _, free = await server.post("completions", prompt="hello", max_tokens=8, temperature=0)
    words = free["choices"][0]["text"].split(" ")[1:]
    asked = {"prompt": "hello", "max_tokens": 8, "temperature": 0, "stop": f"{words[3]} {words[4]}"}
    _, cut = await server.post("completions", **asked)
    expected = "".join(f" {word}" for word in words[:3]) + " "
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == (expected, "stop")
    assert cut["usage"]["completion_tokens"] == 5
    *streamed, _ = await server.stream("completions", **asked)
    assert "".join(frame["choices"][0]["text"] for frame in streamed) == expected


async def test_stop_tokens_and_the_models_own_end(server: Any) -> None:
    """A stop token ends the output, counts, and has no text."""
    _, free = await server.post("completions", prompt="hello", max_tokens=8, temperature=0)
    words = free["choices"][0]["text"].split(" ")[1:]
    _, cut = await server.post(
        "completions", prompt="hello", max_tokens=8, temperature=0, stop_token_ids=[int(words[2][1:])]
    )
    assert cut["choices"][0]["text"] == "".join(f" {word}" for word in words[:2])
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] == 3


async def test_echo_alone_gives_the_prompt_back(server: Any) -> None:
    """H7: echo with max_tokens 0 generates nothing."""
    status, answer = await server.post("completions", prompt=[[5, 6], [7]], echo=True, max_tokens=0)
    assert status == 200
    assert [choice["text"] for choice in answer["choices"]] == [" w5 w6", " w7"]
    assert answer["usage"]["completion_tokens"] == 0


async def test_the_prefix_cache_shows_in_usage(server: Any) -> None:
    """J1: tokens of the prompt that were cached, never more than the prompt has."""
    prompt = list(range(1, 100))
    for expected in (0, 96):
        _, answer = await server.post("completions", prompt=prompt, max_tokens=2)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


async def test_nulls_and_unknown_fields_are_nothing(server: Any) -> None:
    """Load generators send both."""
    nulls = dict.fromkeys(
        ["seed", "logprobs", "stop", "n", "top_k", "temperature", "stream", "stream_options", "logit_bias", "suffix"]
    )
    status, _ = await server.post(
        "completions", prompt="a", max_tokens=1, best_of=1, min_tokens=0, made_up={"x": [1]}, user="u", **nulls
    )
    assert status == 200
