"""Settings and sampling parameters: strict, and every problem at once (I1, I5)."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane.errors import ConfigError, RequestRejected
from control_plane.messages import Sampling
from tokenspeed.config import EngineConfig
from tokenspeed.sampling import SamplingParams

NUMBERS = [
    "memory_bytes",
    "device_blocks",
    "host_memory_bytes",
    "prefix_granularity",
    "max_context_tokens",
    "threads",
    "max_scheduled_tokens",
    "max_batch_size",
    "overlap_depth",
    "safe_steps",
    "max_overtakes",
    "port",
    "max_queued_requests",
    "max_body_bytes",
]
MAY_BE_ZERO = {"overlap_depth", "max_overtakes", "port", "max_queued_requests"}


def problems(**values: Any) -> list[str]:
    """What is wrong with a configuration of these values."""
    return EngineConfig(**values).problems()


def test_the_defaults_work() -> None:
    """Whoever gives nothing gets something that starts."""
    assert problems() == []


@pytest.mark.parametrize("value", [-1, 2**63, math.nan, 1.5, "4", True, b"4"], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_is_none_is_named(name: str, value: object) -> None:
    """I1: the field, the value and what would be right; a text or a boolean is no number."""
    (problem,) = problems(**{name: value})
    assert problem.startswith(f"{name}={value!r} must be a whole number ")


@pytest.mark.parametrize("name", NUMBERS)
def test_zero_is_refused_where_it_means_nothing(name: str) -> None:
    """I1: no division by zero later, no silent default."""
    assert bool(problems(**{name: 0})) is (name not in MAY_BE_ZERO)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mixed": "False"}, "mixed='False' must be true or false"),
        ({"prefix_cache": 1}, "prefix_cache=1 must be true or false"),
        ({"dtype": "fp32"}, "dtype='fp32' must be one of 'auto', 'bfloat16', 'float16', 'float32'"),
        ({"model": ""}, "model='' must be a text that is not empty"),
        ({"model_names": "a"}, "model_names='a' must be a list, each a text that is not empty"),
        ({"max_overtakes": -1}, "max_overtakes=-1 must be a whole number between 0 and 2147483647, or null"),
        ({"max_batch_size": 64, "max_scheduled_tokens": 64}, "must exceed max_batch_size=64"),
        ({"memory_bytes": 10, "device_blocks": 10}, "both size the cache: give one"),
        ({"host_memory_bytes": 10, "prefix_cache": False}, "keeps cached pages, but prefix_cache=False caches none"),
        ({"record": "/no/such/folder/x"}, "record='/no/such/folder/x' must lie in a folder that exists"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_each_problem_says_what_would_be_right(values: dict[str, Any], said: str) -> None:
    """I1, I5."""
    (problem,) = problems(**values)
    assert said in problem


def test_all_problems_come_at_once() -> None:
    """I5: unknown names with the nearest valid one, and bad values beside them."""
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_mapping({"max_schedueld_tokens": 8, "port": -1, "mixed": "no", "zzz": 1})
    first, second, third, fourth = caught.value.problems
    assert first == "'max_schedueld_tokens' is not an option: did you mean 'max_scheduled_tokens'?"
    assert second.startswith("'zzz' is not an option: known are api_key, ")
    assert [third.split("=")[0], fourth.split("=")[0]] == ["mixed", "port"]


def test_a_file_is_read_strictly(tmp_path: Path) -> None:
    """I5: lists are lists, booleans are booleans, and what is not an object is said to be none."""
    file = tmp_path / "engine.json"
    file.write_text('{"model": "stamp", "mixed": false, "model_names": ["a", "b"]}')
    config = EngineConfig.from_file(file, port=0)
    assert (config.mixed, config.model_names, config.port) == (False, ("a", "b"), 0)
    for content, said in (("[]", "not a JSON object"), ("{", "not a JSON object"), ('{"mixed": "False"}', "mixed='")):
        file.write_text(content)
        with pytest.raises(ConfigError, match=said):
            EngineConfig.from_file(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        EngineConfig.from_file(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 2**70),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", -0.1),
        ("seed", 2**70),
        ("seed", 0.5),
        ("stop", ("",)),
        ("stop", ("x",) * 17),
        ("stop", ("x" * 2000,)),
        ("stop_token_ids", (-1,)),
        ("ignore_eos", "False"),
        ("ignore_eos", 1),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("n", 0),
        ("n", 10**9),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_sampling_parameter_out_of_range_is_named(name: str, value: Any) -> None:
    """H8: the field, and the value, cut short if it is long."""
    with pytest.raises(RequestRejected) as caught:
        SamplingParams(**{name: value})
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name}=")
    assert len(str(caught.value)) < 250


def test_several_bad_parameters_are_named_together() -> None:
    """One answer is enough to put all of them right."""
    with pytest.raises(RequestRejected, match=r"^max_tokens=0 must .*; top_p=2 must .*"):
        SamplingParams(max_tokens=0, top_p=2)


def test_stops_may_be_one_text_or_a_list() -> None:
    """As people write them; kept as a tuple."""
    assert SamplingParams(stop="a").stop == ("a",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1]).stop == ("a", "b")  # type: ignore[arg-type]


def test_the_samplers_words() -> None:
    """Every field that the sampler knows arrives there, and -1 is another way to switch top_k off."""
    params = SamplingParams(
        temperature=1,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.5,
        presence_penalty=-1,
        frequency_penalty=2,
    )
    assert params.to_sampling() == Sampling(
        temperature=1.0,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        seed=7,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
    )
    assert SamplingParams(top_k=-1).to_sampling().top_k == 0


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63 - 1, 0])
def test_every_seed_can_be_sent(seed: int) -> None:
    """Negative ones too: the sampler gets a number that travels."""
    drawn = SamplingParams(seed=seed).to_sampling()
    assert 0 <= drawn.seed < 2**63
    assert drawn == SamplingParams(seed=seed).to_sampling()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(drawn), type=Sampling) == drawn


def test_a_seed_is_drawn_only_where_it_matters() -> None:
    """Two requests without one differ; greedy ones do not, so their plans are the same each time."""
    assert SamplingParams().to_sampling().seed != SamplingParams().to_sampling().seed
    assert SamplingParams(temperature=0).to_sampling().seed == 0


def test_choices_have_seeds_of_their_own() -> None:
    """The first has the request's, the others follow from it."""
    choices = SamplingParams(n=8, seed=3).choices()
    seeds = [choice.seed for choice in choices]
    assert seeds[0] == 3
    assert len(set(seeds)) == 8
    assert choices == SamplingParams(n=8, seed=3).choices()
    assert {choice.n for choice in choices} == {1}
    assert len({choice.seed for choice in SamplingParams(n=8).choices()}) == 8
