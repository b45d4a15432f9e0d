"""What a client says about single tokens: biases, a least length, tokens that end the output."""

from typing import Any

import pytest

from tokenspeed import SamplingParams

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = {"prompt": "The quick brown fox", "temperature": 0}


async def ids_of(server: Any, **fields: Any) -> list[int]:
    """What is written, by the library: text would hide which tokens it was."""
    prompt = await server.engine.encode(fields.pop("prompt"))
    outputs = [output async for output in server.engine.generate(prompt, SamplingParams(**fields))]
    return [token for output in outputs for token in output.token_ids]


async def test_a_bias_decides_over_http(server: Any) -> None:
    """+100 makes a token certain, -100 keeps it out; the others' order is as before."""
    token = (await server.engine.encode("z"))[0]
    _, forced = await server.post("completions", **GREEDY, max_tokens=5, logit_bias={str(token): 100})
    assert forced["choices"][0]["text"] == "zzzzz"
    free = await ids_of(server, **GREEDY, max_tokens=8)
    banned = await ids_of(server, **GREEDY, max_tokens=8, logit_bias={free[2]: -100})
    assert banned[:2] == free[:2]
    assert free[2] not in banned
    _, none = await server.post("completions", **GREEDY, max_tokens=8, logit_bias={})
    _, same = await server.post("completions", **GREEDY, max_tokens=8, logit_bias={str(free[0]): 0})
    assert none["choices"] == same["choices"]


async def test_a_least_length_holds_every_end_off(server: Any) -> None:
    """Neither a stop token, nor the model's end, nor a stop string ends the output before `min_tokens`."""
    free = await ids_of(server, **GREEDY, max_tokens=6)
    asked = {**GREEDY, "max_tokens": 12, "stop_token_ids": [free[1]]}
    _, early = await server.post("completions", **asked)
    assert early["usage"]["completion_tokens"] == 2
    _, late = await server.post("completions", **asked, min_tokens=7)
    assert late["usage"]["completion_tokens"] >= 7
    (end,) = server.engine.specs.stop_token_ids
    ending = {**GREEDY, "max_tokens": 12, "logit_bias": {str(end): 100}}
    _, ended = await server.post("completions", **ending)
    assert (ended["usage"]["completion_tokens"], ended["choices"][0]["finish_reason"]) == (1, "stop")
    for least in (1, 5):
        _, ended = await server.post("completions", **ending, min_tokens=least)
        assert ended["usage"]["completion_tokens"] == least + 1
        assert ended["choices"][0]["finish_reason"] == "stop"
    biased = {**GREEDY, "max_tokens": 9, "stop": "zz", "logit_bias": {str((await server.engine.encode("z"))[0]): 100}}
    _, stopped = await server.post("completions", **biased)
    assert (stopped["choices"][0]["text"], stopped["usage"]["completion_tokens"]) == ("", 2)
    _, stopped = await server.post("completions", **biased, min_tokens=4)
    assert (stopped["choices"][0]["text"], stopped["usage"]["completion_tokens"]) == ("zzzz", 6)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop_token_ids": [320]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 40: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias[...]"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_what_the_vocabulary_does_not_have_is_refused(server: Any, fields: dict[str, Any], param: str) -> None:
    """H8: 400 with the field's name, streamed or not; nothing is taken in silence."""
    for path, body in (
        ("completions", {"prompt": "x"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        for stream in (False, True):
            status, answer = await server.post(path, {"stream": stream, **body, **fields})
            assert (status, answer["error"]["param"]) == (400, param)


async def test_a_least_length_without_any_end_needs_no_logits(server: Any) -> None:
    """Load generators send it beside `ignore_eos`."""
    _, answer = await server.post("completions", **GREEDY, max_tokens=5, min_tokens=5, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 5
