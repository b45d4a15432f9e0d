"""Hybrid families of transformers, driven with states in snapshots, against `generate()` run alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FalconMambaConfig,
    JambaConfig,
    Lfm2Config,
    LlamaConfig,
    MiniMaxConfig,
    RecurrentGemmaConfig,
    T5Config,
)

from control_plane.errors import ConfigError
from data_plane.model.grouped_runner import GroupedRunner
from data_plane.model.hf_hybrid import HybridDecoder, is_hybrid, load_hybrid
from data_plane.model.hf_observe import keeps_states
from data_plane.model.registry import load_model
from tests.models.group_driver import GroupDriver, group_of
from tests.models.hybrid_shapes import HYBRIDS, saved_hybrid
from tests.models.shapes import COMMON, generated, saved
from tests.models.test_random_models import prompts

PAGE = 16
NEW_TOKENS = 8


def driver_of(shape: str, *, state_granularity: int = PAGE, seed: int = 0, dtype: str = "auto") -> GroupDriver:
    """A fresh runner of a random model."""
    decoder = load_hybrid(saved_hybrid(shape), device="cpu", dtype=dtype)
    runner = GroupedRunner(decoder, name=shape, block_granularity=PAGE, state_granularity=state_granularity)
    return GroupDriver(runner, prefix_granularity=PAGE, seed=seed)


@pytest.mark.parametrize("shape", sorted(HYBRIDS))
def test_random_chunks_and_checkpoints_write_what_generate_writes(shape: str) -> None:
    """Extends, decodes and checkpoints mixed at random: every request's greedy tokens are its own (R3.6)."""
    driver = driver_of(shape, state_granularity=4)
    asked = prompts(1, 1, 3, 17, 40, 90)
    slots = [driver.start(prompt) for prompt in asked]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=70, most_chunk=60)
    for slot, prompt in zip(slots, asked, strict=True):
        assert outputs[slot] == generated(saved_hybrid(shape), prompt, NEW_TOKENS), f"{len(prompt)} tokens"


@pytest.mark.parametrize("shape", sorted(HYBRIDS))
def test_a_prefix_is_shared_at_a_checkpoint(shape: str) -> None:
    """Two requests begin at another's checkpoint while it goes on, and write what they would write alone."""
    driver = driver_of(shape)
    (prefix, ending_a, ending_b, ending_c) = prompts(3, 48, 13, 1, 30)
    a = driver.start(prefix + ending_a)
    driver.run({a: 61}, checkpoints={a: 48})
    driver.run({a: 1})
    b, c = driver.start(prefix + ending_b), driver.start(prefix + ending_c)
    for slot in (b, c):
        driver.share(slot, owner=a, tokens=48)
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=30, most_chunk=11)
    for slot, ending in ((a, ending_a), (b, ending_b), (c, ending_c)):
        assert outputs[slot] == generated(saved_hybrid(shape), prefix + ending, NEW_TOKENS)


@pytest.mark.parametrize("shape", ["qwen3_next", "bamba", "lfm2"])
def test_the_output_depends_on_the_state(shape: str) -> None:
    """Without its snapshot a request writes something else: the tests above would notice a lost state."""
    driver = driver_of(shape)
    (prompt,) = prompts(6, 40)
    a = driver.start(prompt)
    driver.run({a: 39})
    driver.blocks(1)[driver.tables[1][a, 38 // PAGE]] = 0
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=16, most_chunk=16)
    assert outputs[a] != generated(saved_hybrid(shape), prompt, NEW_TOKENS)


def test_states_keep_their_own_dtype() -> None:
    """A bfloat16 model may keep a float32 state: a snapshot in between changes nothing against decoding straight on."""
    driver = driver_of("qwen3_next", dtype="bfloat16")
    (prompt,) = prompts(7, 32)
    a, b = driver.start(prompt), driver.start(prompt)
    driver.run({a: 16})
    driver.run({a: 16})
    driver.share(b, owner=a, tokens=16)
    driver.run({b: 16})
    rows = [driver.blocks(1)[driver.tables[1][slot, 1]] for slot in (a, b)]
    assert rows[0].any()
    assert np.array_equal(rows[0], rows[1])
    state = load_hybrid(saved_hybrid("qwen3_next"), device="cpu", dtype="bfloat16").facts.states[0]
    assert {part.dtype for part in state} == {torch.bfloat16, torch.float32}


def test_layers_of_both_kinds_keep_rows_and_states() -> None:
    """In Falcon-H1 every layer attends and recurs."""
    runner = driver_of("falcon_h1").runner
    assert group_of(runner, "full").layers == group_of(runner, "state").layers == (0, 1, 2, 3)


def test_a_hybrid_may_have_windows_too() -> None:
    """LaRA mini has full, sliding and recurrent layers: three groups in one arena."""
    runner = driver_of("lara_mini").runner
    groups = [(group.id, group.layers, group.window) for group in runner.facts.groups]
    assert groups == [("full", (3,), 0), ("sliding", (1,), 8), ("state", (0, 2), 0)]


def test_the_facts_are_the_configurations() -> None:
    """Vocabulary, context, stop tokens, and which layers are in which group."""
    runner = driver_of("bamba").runner
    facts = runner.facts
    assert (facts.vocab_size, facts.max_context_tokens, facts.stop_token_ids) == (307, 256, (3, 5))
    assert facts.dtype == "float32"
    assert (group_of(runner, "full").layers, group_of(runner, "state").layers) == ((1, 3), (0, 2))


@pytest.mark.parametrize("shape", sorted(HYBRIDS))
def test_a_configuration_tells_who_keeps_states(shape: str) -> None:
    """Before anything is loaded; a model of attention layers alone keeps none."""
    assert keeps_states(HYBRIDS[shape]())
    assert is_hybrid(saved_hybrid(shape))
    assert not keeps_states(LlamaConfig(**COMMON))


def test_the_registry_loads_a_hybrid_as_one() -> None:
    """By its folder, like any other model; it comes with a state group."""
    loaded = load_model(str(saved_hybrid("bamba")), block_granularity=PAGE, progress=lambda line: None)
    assert loaded.tokenizer_path == saved_hybrid("bamba")
    assert [group.kind for group in loaded.runner.facts.groups] == ["full", "state"]


def test_a_folder_of_another_kind_is_no_hybrid(tmp_path: Path) -> None:
    """Nor is one that cannot be read: whoever loads it says why."""
    assert not is_hybrid(saved("llama"))
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    assert not is_hybrid(tmp_path)


def test_a_layer_that_forgets_between_chunks_is_refused() -> None:
    """Mamba-1 of transformers starts from nothing whenever it gets more than one token."""
    config = JambaConfig(**COMMON, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=8)
    with pytest.raises(ConfigError, match=r"layer 0 \(JambaMambaMixer\) cannot go on from a state"):
        HybridDecoder(_random(config))


def test_a_model_without_attention_is_refused() -> None:
    """Its positions and its prefixes would have no group to live in."""
    config = FalconMambaConfig(vocab_size=307, hidden_size=48, num_hidden_layers=2, state_size=8)
    with pytest.raises(ConfigError, match="falcon_mamba has no attention layers; a hybrid has both"):
        HybridDecoder(_random(config))


def test_a_state_that_is_kept_elsewhere_is_found_out() -> None:
    """RecurrentGemma's layers keep theirs to themselves, where the rows of a round would mix."""
    config = RecurrentGemmaConfig(**COMMON, lru_width=48, attention_window_size=16)
    with pytest.raises(ConfigError, match="layer 0 of recurrent_gemma does not keep what it remembers"):
        HybridDecoder(_random(config))


def test_a_cache_of_its_own_is_refused() -> None:
    """MiniMax asks its cache for more than transformers' cache has."""
    config = MiniMaxConfig(**COMMON, num_local_experts=2, layer_types=["linear_attention", "full_attention"] * 2)
    with pytest.raises(ConfigError, match=r"minimax fails on its first tokens: .*cache"):
        HybridDecoder(_random(config))


def test_layers_of_another_type_are_named(tmp_path: Path) -> None:
    """The layer, its type, and what would do."""
    config = Lfm2Config(**COMMON, layer_types=["conv", "chunked_attention"] * 2)
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"layer 1 of lfm2 is of type 'chunked_attention'; supported: .*conv"):
        load_hybrid(tmp_path, device="cpu", dtype="auto")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    """Before its weights are looked for."""
    T5Config(num_layers=1, d_model=16, d_ff=16, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="t5 is an encoder-decoder"):
        load_hybrid(tmp_path, device="cpu", dtype="auto")


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    """With transformers' own words for why."""
    HYBRIDS["bamba"]().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="transformers cannot load"):
        load_hybrid(tmp_path, device="cpu", dtype="auto")


def _random(config: Any) -> Any:
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(config)
