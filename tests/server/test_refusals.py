"""Bad requests: refused with the field's name, and the next one works."""

import json
from typing import Any

import pytest

USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": "a" * 1024}, "prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 1e18}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 2**70}, "max_tokens"),
        ({"prompt": "x", "n": 0}, "n"),
        ({"prompt": "x", "n": 10**9}, "n"),
        ({"prompt": "x", "seed": 2**70}, "seed"),
        ({"prompt": "x", "stop": ["a"] * 10**5}, "stop"),
        ({"prompt": "x", "stop": [""]}, "stop"),
        ({"prompt": "x", "temperature": -0.1}, "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "stream": "yes"}, "stream"),
        ({"prompt": "x", "logprobs": 10**6}, "logprobs"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": 1}, "logprobs"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt": "x", "min_tokens": 5}, "min_tokens"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_a_bad_completion_request_names_its_field(server: Any, fields: dict[str, Any], param: str) -> None:
    """H7, H8: 400 with an error object, streamed or not, and the engine is none the worse."""
    for stream in (False, True):
        status, answer = await server.post("completions", {"stream": stream, **fields})
        assert (status, answer["error"]["type"], answer["error"]["param"]) == (400, "invalid_request_error", param)
        assert answer["error"]["message"]
    status, _ = await server.post("completions", prompt="x", max_tokens=1)
    assert status == 200
    assert server.engine.audit() == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": USER, "max_tokens": 0}, "max_tokens"),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format"),
        ({"messages": USER, "logprobs": True}, "logprobs"),
        ({"messages": USER, "logprobs": 3}, "logprobs"),
        ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": USER, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
async def test_a_bad_chat_request_names_its_field(server: Any, fields: dict[str, Any], param: str) -> None:
    """What is not offered is refused, not ignored."""
    status, answer = await server.post("chat/completions", fields)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_what_is_asked_for_in_name_only_is_accepted(server: Any) -> None:
    """Tools that may not be used, plain text as a format, logprobs switched off."""
    fields = {"tools": [{}], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False}
    status, _ = await server.post("chat/completions", messages=USER, max_tokens=1, **fields)
    assert status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff\xfe", b'{"prompt": NaN}'])
async def test_a_body_that_is_no_request(server: Any, body: bytes) -> None:
    """Never a 500."""
    async with server.http.post(f"{server.url}/v1/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_prompt_longer_than_the_pool_is_told_the_numbers(serve: Any) -> None:
    """A1: what no round could ever serve is refused at once, and blocks nobody."""
    server = await serve(device_blocks=4)
    status, answer = await server.post("completions", prompt="x" * 200, max_tokens=1)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "prompt_tokens=200" in answer["error"]["message"]
    assert (await server.post("completions", prompt="x", max_tokens=1))[0] == 200


async def test_unknown_paths_methods_and_models(server: Any) -> None:
    """404 and 405 are error objects too."""
    async with server.http.get(f"{server.url}/v1/nothing") as response:
        assert (response.status, "error" in await response.json()) == (404, True)
    for method in ("GET", "PUT", "DELETE", "TRACE"):
        async with server.http.request(method, f"{server.url}/v1/completions") as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
    status, answer = await server.post("completions", model="other", prompt="x")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_a_body_above_the_limit(serve: Any) -> None:
    """413, and the connection's next request is not harmed."""
    server = await serve(max_body_bytes=2000)
    status, answer = await server.post("completions", prompt="x" * 3000)
    assert (status, "error" in answer) == (413, True)
    assert (await server.post("completions", prompt="x", max_tokens=1))[0] == 200


async def test_a_key_is_needed_where_one_is_set(serve: Any) -> None:
    """401 without it; health and metrics stay open."""
    server = await serve(api_key="sésame")
    for sent, expected in (("", 401), ("Bearer wrong", 401), ("Bearer sésame", 200)):
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        headers = {"Authorization": sent}
        async with server.http.post(f"{server.url}/v1/completions", data=body, headers=headers) as response:
            assert response.status == expected
    assert [(await server.get(path))[0] for path in ("/health", "/metrics", "/v1/models")] == [200, 200, 401]


async def test_without_a_key_an_empty_one_is_no_harm(server: Any) -> None:
    """Some clients always send the header."""
    async with server.http.get(f"{server.url}/v1/models", headers={"Authorization": "Bearer "}) as response:
        assert response.status == 200


async def test_the_models_that_are_served(serve: Any) -> None:
    """Every alias is listed and can be asked for."""
    server = await serve(model_names=("one", "org/two"))
    _, text = await server.get("/v1/models")
    cards = json.loads(text)["data"]
    assert [card["id"] for card in cards] == ["one", "org/two"]
    assert {(card["object"], card["owned_by"], card["root"], card["max_model_len"]) for card in cards} == {
        ("model", "tokenspeed", "stamp", 1024)
    }
    assert json.loads((await server.get("/v1/models/org/two"))[1])["id"] == "org/two"
    assert (await server.get("/v1/models/stamp"))[0] == 404
    _, answer = await server.post("completions", model="org/two", prompt="x", max_tokens=1)
    assert answer["model"] == "org/two"
