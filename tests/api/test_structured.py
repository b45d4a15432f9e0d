"""Output that must match something: the grammar holds whatever the model would rather write."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.server.conftest import Running
from tokenspeed import SamplingParams
from tokenspeed.structured import json_schema_grammar

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
        "next": {"$ref": "#/$defs/next"},
    },
    "required": ["kind", "count", "tags", "next"],
    "additionalProperties": False,
    "$defs": {"next": {"type": ["boolean", "null"]}},
}
USER = [{"role": "user", "content": "hello"}]


def matches(text: str) -> bool:
    """Whether a text is what SCHEMA describes."""
    value = json.loads(text)
    assert list(value) == ["kind", "count", "tags", "next"]
    assert value["kind"] in ("a", "b")
    assert 0 <= value["count"] <= 99
    assert 1 <= len(value["tags"]) <= 3
    assert all(isinstance(tag, str) and len(tag) <= 4 for tag in value["tags"])
    return value["next"] in (True, False, None)


@pytest.mark.parametrize("temperature", [0, 1, 5])
async def test_a_schema_holds_on_both_endpoints(server: Running, temperature: float) -> None:
    """Chat with `response_format`, completions with `guided_json`, n choices, streamed and not."""
    asked: dict[str, Any] = {"temperature": temperature, "seed": 1, "n": 3, "max_tokens": 200}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    _, chat = await server.post("chat/completions", messages=USER, response_format=form, **asked)
    _, plain = await server.post("completions", prompt="x", guided_json=SCHEMA, **asked)
    _, as_text = await server.post("completions", prompt="x", guided_json=json.dumps(SCHEMA), **asked)
    assert plain["choices"] == as_text["choices"]
    texts = [choice["message"]["content"] for choice in chat["choices"]]
    texts += [choice["text"] for choice in plain["choices"]]
    assert all(matches(text) for text in texts)
    assert {choice["finish_reason"] for choice in chat["choices"] + plain["choices"]} == {"stop"}
    *chunks, _ = await server.stream("chat/completions", messages=USER, response_format=form, **asked)
    streamed = [""] * 3
    for chunk in chunks:
        for part in chunk["choices"]:
            streamed[part["index"]] += part["delta"].get("content", "")
    assert streamed == [choice["message"]["content"] for choice in chat["choices"]]


async def test_every_other_way_to_ask(server: Running) -> None:
    """Expressions, choices, a grammar, any object; the bias wants them to be something else."""
    asked: dict[str, Any] = {"prompt": "x", "temperature": 1, "seed": 3, "max_tokens": 60}
    _, answer = await server.post("completions", **asked, guided_regex=r"[ab]{3}/\d\d?")
    assert re.fullmatch(r"[ab]{3}/\d\d?", answer["choices"][0]["text"])
    _, answer = await server.post("completions", **asked, n=4, guided_choice=["yes", "no", 'may"be'])
    assert {choice["text"] for choice in answer["choices"]} <= {"yes", "no", 'may"be'}
    _, answer = await server.post("completions", **asked, guided_grammar='start: "a" b "c"\nb: /[0-9]{4}/')
    assert re.fullmatch(r"a\d{4}c", answer["choices"][0]["text"])
    brace = (await server.engine.encode("}"))[0]
    asked = {"messages": USER, "temperature": 0, "max_tokens": 200, "logit_bias": {str(brace): 100}}
    _, answer = await server.post("chat/completions", **asked, response_format={"type": "json_object"})
    assert json.loads(answer["choices"][0]["message"]["content"]) == {}


async def test_scores_are_those_of_what_was_allowed(server: Running) -> None:
    """Log probabilities of the sampled distribution: where only one token may come, it is certain."""
    _, answer = await server.post("completions", prompt="x", guided_choice=["zq"], max_tokens=5, logprobs=0)
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == pytest.approx([0.0] * 3, abs=1e-6)


async def test_overlap_ends_for_that_request_only(server: Running) -> None:
    """Beside others it writes what it writes alone, and so do they; only its own place names the reason."""
    engine = server.engine
    prompt = await engine.encode("The quick brown fox")
    grammar = json_schema_grammar(SCHEMA)
    params = [
        SamplingParams(temperature=1, seed=1, max_tokens=200, grammar=grammar),
        SamplingParams(temperature=1, seed=2, max_tokens=60),
        SamplingParams(temperature=1, seed=3, max_tokens=200, grammar=grammar, frequency_penalty=1),
        SamplingParams(temperature=0, max_tokens=60),
    ]

    async def ids(index: int) -> tuple[int, ...]:
        (generation,) = engine.submit([prompt], params[index], request_id=f"r{index}")
        tokens: tuple[int, ...] = ()
        where = ""
        while not generation.is_over:
            tokens += (await generation.next()).token_ids
            if len(tokens) == 3:
                where = engine.explain(f"r{index}")
        assert ("do not overlap" in where) == (index in (0, 2)), where
        return tokens

    alone = [await ids(index) for index in range(4)]
    assert await asyncio.gather(*map(ids, range(4))) == alone


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}},
            "response_format",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 2}, "min_tokens"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_grammar": "nothing of the kind"}, "guided_grammar"),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
async def test_what_cannot_be_produced_is_refused(server: Running, fields: dict[str, Any], param: str) -> None:
    """Before the 200, with the field's name and the reason."""
    for path, body in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": USER})):
        status, answer = await server.post(path, {"stream": True, **body, **fields})
        assert (status, answer["error"]["param"]) == (400, param), answer
