"""What cannot be driven through block tables is refused at load, by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    MambaConfig,
    T5Config,
)

from control_plane.errors import ConfigError
from data_plane.model.drivable import check_config
from data_plane.model.hf import HookedDecoder, load_decoder
from data_plane.model.registry import load_model
from tests.models.shapes import COMMON


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    """Before its weights are looked for."""
    T5Config(num_layers=1, d_model=16, d_ff=16, num_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="t5 is an encoder-decoder"):
        load_decoder(tmp_path, device="cpu", dtype="auto")


def test_layers_of_another_type_are_named() -> None:
    """A convolution among the attention layers, told by the configuration."""
    config = Lfm2Config(num_hidden_layers=2, layer_types=["full_attention", "conv"])
    with pytest.raises(ConfigError, match="layer 1 of lfm2 is of type 'conv'"):
        check_config(config)


def test_attention_in_both_directions_is_refused() -> None:
    """An embedding model is no generator."""
    with pytest.raises(ConfigError, match="both directions"):
        check_config(Gemma3TextConfig(use_bidirectional_attention=True))


def hooked(config: Any) -> HookedDecoder:
    """A random model of this configuration, probed."""
    torch.manual_seed(0)
    return HookedDecoder(AutoModelForCausalLM.from_config(config))


def test_recurrent_layers_are_named() -> None:
    """A model without attention is found out by running it."""
    config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(ConfigError, match=r"0 of its 2 layers \(MambaBlock\)"):
        hooked(config)


def test_attention_sinks_are_named() -> None:
    """They arrive with the layer's call."""
    config = GptOssConfig(**{**COMMON, "num_local_experts": 2, "num_experts_per_tok": 1, "initializer_range": 0.02})
    with pytest.raises(ConfigError, match=r"layer 0 \(GptOssAttention\) uses attention sinks"):
        hooked(config)


def test_an_unknown_dtype_lists_the_choices(tmp_path: Path) -> None:
    """The error names the field, the value and what it may be."""
    with pytest.raises(ConfigError, match="dtype='int4' must be one of auto, float32, bfloat16, float16"):
        load_model(str(tmp_path), dtype="int4", block_granularity=4, progress=lambda line: None)


def test_a_device_that_is_not_there_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is looked for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device='cuda': torch finds no CUDA device"):
        load_model(str(tmp_path), device="cuda", block_granularity=4, progress=lambda line: None)


def test_a_folder_that_transformers_cannot_read_is_named(tmp_path: Path) -> None:
    """With transformers' own words for why."""
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    with pytest.raises(ConfigError, match=r"transformers cannot load .*abacus"):
        load_model(str(tmp_path), block_granularity=4, progress=lambda line: None)
