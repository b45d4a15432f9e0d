"""Random models of each shape, through block tables, against `generate()` run alone."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from control_plane.messages import Sampling
from data_plane.attention.kernels import LayerRule
from data_plane.model.base import GroupLayout, ModelRunner
from data_plane.model.drivable import LayerFacts
from data_plane.model.layer_groups import attention_groups
from data_plane.model.registry import load_model
from tests.models.group_driver import GroupDriver
from tests.models.shapes import SHAPES, generated, saved

NEW_TOKENS = 12


def runner_of(shape: str, *, granularity: int = 4) -> ModelRunner:
    """A fresh runner of a random model."""
    return load_model(str(saved(shape)), block_granularity=granularity, progress=lambda line: None).runner


def driver_of(shape: str, *, granularity: int = 4, seed: int = 0) -> GroupDriver:
    """A driver of its own for a fresh runner."""
    return GroupDriver(runner_of(shape, granularity=granularity), prefix_granularity=granularity, seed=seed)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Random prompts of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(6, 300, size=length).tolist() for length in lengths]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("granularity", [4, 16])
def test_batches_in_random_chunks_write_what_generate_writes(shape: str, granularity: int) -> None:
    """Chunks and decodes mixed at random, blocks scattered: every request's greedy tokens are its own."""
    driver = driver_of(shape, granularity=granularity, seed=granularity)
    asked = prompts(1, 1, 3, 9, 17, 33, 70)
    slots = [driver.start(prompt) for prompt in asked]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=24, most_chunk=13)
    for slot, prompt in zip(slots, asked, strict=True):
        assert outputs[slot][:NEW_TOKENS] == generated(saved(shape), prompt, NEW_TOKENS), f"{len(prompt)} tokens"


@pytest.mark.parametrize("shape", ["llama", "gemma3"])
def test_a_whole_prompt_at_once_longer_than_a_tile(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefill that is cut into tiles inside one call, from the start of the prompt and after a prefix."""
    monkeypatch.setattr("data_plane.attention.round_plan.TILE_QUERIES", 16)
    driver = driver_of(shape)
    first, second = prompts(2, 90, 75)
    a, b = driver.start(first), driver.start(second)
    driver.run({a: 90, b: 7})
    driver.run({a: 1, b: 68})
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=8, most_chunk=4)
    assert outputs[a][:NEW_TOKENS] == generated(saved(shape), first, NEW_TOKENS)
    assert outputs[b][:NEW_TOKENS] == generated(saved(shape), second, NEW_TOKENS)


@pytest.mark.parametrize("shape", ["gemma3", "gemma2", "mistral"])
def test_a_prompt_longer_than_the_window_in_one_call(shape: str) -> None:
    """The first chunk has no prefix, yet its last tokens may not see its first."""
    driver = driver_of(shape)
    asked = prompts(8, *range(10, 17))
    slots = [driver.start(prompt) for prompt in asked]
    driver.run({slot: len(prompt) for slot, prompt in zip(slots, asked, strict=True)})
    outputs = driver.finish(new_tokens=4, budget_tokens=8, most_chunk=1)
    for slot, prompt in zip(slots, asked, strict=True):
        assert outputs[slot] == generated(saved(shape), prompt, 4)


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gemma3"])
def test_a_shared_prefix_is_read_not_computed(shape: str) -> None:
    """A second request that points at the first one's blocks writes what it would write alone."""
    driver = driver_of(shape)
    (prefix, ending_a, ending_b) = prompts(3, 24, 5, 9)
    a = driver.start(prefix + ending_a)
    driver.run({a: 29})
    b = driver.start(prefix + ending_b)
    driver.share(b, owner=a, tokens=24)
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=16, most_chunk=6)
    assert outputs[a][:NEW_TOKENS] == generated(saved(shape), prefix + ending_a, NEW_TOKENS)
    assert outputs[b][:NEW_TOKENS] == generated(saved(shape), prefix + ending_b, NEW_TOKENS)


def test_a_row_reads_what_another_row_of_the_round_writes() -> None:
    """Two requests of one round may share a block that the first of them is only now filling."""
    driver = driver_of("llama")
    (prefix, ending) = prompts(4, 8, 5)
    a = driver.start(prefix)
    driver.run({a: 4})
    driver.admit(a, 4)
    b = driver.start(prefix + ending)
    # Not by `share`, which stands for blocks that are written already.
    driver.requests[b].held[0] = dict(driver.requests[a].held[0])
    driver.requests[b].computed = 8
    driver.run({a: 4, b: 5})
    assert driver.requests[b].output == generated(saved("llama"), prefix + ending, 1)


def test_sampled_tokens_do_not_depend_on_the_batch() -> None:
    """With a seed, a request draws the same tokens alone, in company, and after a retraction halfway."""
    sampling = Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=11, repetition_penalty=1.2, presence_penalty=0.3)
    (prompt, *others) = prompts(5, 20, 31, 6)

    alone = driver_of("qwen3", seed=1)
    slot = alone.start(prompt, sampling=sampling)
    expected = alone.finish(new_tokens=NEW_TOKENS, budget_tokens=32, most_chunk=32)[slot][:NEW_TOKENS]

    company = driver_of("qwen3", seed=2)
    slot = company.start(prompt, sampling=sampling)
    for number, other in enumerate(others):
        company.start(other, sampling=Sampling(temperature=1.5, seed=number))
    outputs = company.finish(new_tokens=NEW_TOKENS, budget_tokens=16, most_chunk=7)
    assert outputs[slot][:NEW_TOKENS] == expected

    retracted = driver_of("qwen3", seed=3)
    slot = retracted.start(prompt, sampling=sampling)
    retracted.finish(new_tokens=5, budget_tokens=32, most_chunk=32)
    known = retracted.drop(slot)
    slot = retracted.start(known, sampling=sampling, prompt_tokens=len(prompt))
    again = retracted.finish(new_tokens=NEW_TOKENS, budget_tokens=9, most_chunk=9)
    assert again[slot][:NEW_TOKENS] == expected


def test_a_round_that_samples_nothing_returns_no_tokens() -> None:
    """Chunks that stop short of the prompt's end compute and stay silent."""
    driver = driver_of("llama")
    (prompt,) = prompts(6, 10)
    slot = driver.start(prompt)
    driver.run({slot: 4})
    assert driver.requests[slot].output == []


def test_facts_say_what_the_configuration_says() -> None:
    """Vocabulary, context, end-of-sequence tokens, the groups and the bytes of their blocks."""
    facts = runner_of("gemma3", granularity=4).facts
    assert (facts.vocab_size, facts.max_context_tokens, facts.stop_token_ids) == (307, 256, (3, 5))
    layer_bytes = 2 * 4 * 2 * 8 * 4  # keys and values, tokens, heads, dim, float32
    assert facts.groups == (
        GroupLayout("full", "full", 4, layer_bytes, layers=(3,)),
        GroupLayout("sliding", "sliding", 4, 3 * layer_bytes, layers=(0, 1, 2), window=8),
    )
    assert facts.dtype == "float32"


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ("llama", [("full", (0, 1, 2, 3), 0)]),
        ("mistral", [("sliding", (0, 1, 2, 3), 11)]),
        ("gemma2", [("full", (1, 3), 0), ("sliding", (0, 2), 8)]),
    ],
)
def test_layers_are_grouped_by_what_they_see(shape: str, groups: list[tuple[str, tuple[int, ...], int]]) -> None:
    """One group where all layers are alike, else the full ones and the sliding ones."""
    assert [(group.id, group.layers, group.window) for group in runner_of(shape).facts.groups] == groups


def test_a_window_as_long_as_the_context_is_none() -> None:
    """What no request can leave is full history; every other window, and every shape, is a group of its own."""

    def layer(window: int, kv_heads: int = 2) -> LayerFacts:
        return LayerFacts(kv_heads, 8, 8, torch.float32, LayerRule(1.0, window))

    layers = dict(enumerate([layer(16), layer(0), layer(255), layer(256), layer(0, kv_heads=1), layer(16)]))
    groups = attention_groups(layers, max_context_tokens=256)
    assert [(group.id, group.layers, group.window, group.kv_heads) for group in groups] == [
        ("full-1", (1, 3), 0, 2),
        ("full-2", (4,), 0, 1),
        ("sliding-1", (2,), 255, 2),
        ("sliding-2", (0, 5), 16, 2),
    ]


@pytest.mark.parametrize("shape", ["gemma3", "gemma2", "mistral"])
@pytest.mark.parametrize("granularity", [4, 1])
def test_what_slid_out_is_given_away(shape: str, granularity: int) -> None:
    """A request of 200 tokens holds a window and a chunk of sliding blocks; others overwrite the rest meanwhile."""
    driver = driver_of(shape, granularity=granularity)
    (index,) = [index for index, group in enumerate(driver.groups) if group.kind == "sliding"]
    (prompt, other) = prompts(9, 190, 120)
    slots = [driver.start(prompt), driver.start(other)]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=20, most_chunk=9)
    for slot, asked in zip(slots, (prompt, other), strict=True):
        assert outputs[slot] == generated(saved(shape), asked, NEW_TOKENS)
    window = driver.groups[index].window
    assert driver.most_held[index] <= -(-(window - 1 + 9) // granularity) + 1


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    """The round fails with the numbers; nothing was computed, and the next round works."""
    driver = driver_of("llama")
    bad = driver.start([7, 400])
    with pytest.raises(ValueError, match="400, vocabulary is 307"):
        driver.run({bad: 2})
    good = driver.start([7, 8])
    driver.run({good: 2})
    assert driver.requests[good].output == generated(saved("llama"), [7, 8], 1)


@pytest.mark.parametrize("shape", ["llama", "gemma3"])
def test_bfloat16_halves_the_blocks_and_follows_its_own_reference(shape: str) -> None:
    """The first token after each prompt is the one that transformers finds in bfloat16."""
    runner = load_model(str(saved(shape)), dtype="bfloat16", block_granularity=4, progress=lambda line: None).runner
    assert runner.facts.dtype == "bfloat16"
    assert runner.facts.groups[0].block_bytes * 2 == runner_of(shape).facts.groups[0].block_bytes
    driver = GroupDriver(runner, prefix_granularity=4)
    reference = AutoModelForCausalLM.from_pretrained(saved(shape), dtype=torch.bfloat16)
    for prompt in prompts(7, 5, 12, 30):
        slot = driver.start(prompt)
        driver.run({slot: len(prompt) // 2})
        driver.run({slot: len(prompt) - len(prompt) // 2})
        logits = reference(torch.tensor([prompt])).logits[0, -1].float()
        (token,) = driver.drop(slot)[len(prompt) :]
        # Rounding differs between the two, so a near tie may fall either way.
        assert logits[token] >= logits.max() - 0.05 * logits.abs().max()
