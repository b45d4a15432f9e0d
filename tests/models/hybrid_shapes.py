"""Small random models of the hybrid families that transformers has, written by `save_pretrained`."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    LaraMiniConfig,
    Lfm2Config,
    NemotronHConfig,
    OlmoHybridConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from tests.models.shapes import COMMON

_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 12,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_WITHOUT_DEPTH = {name: value for name, value in COMMON.items() if name != "num_hidden_layers"}

# Built when asked for: a configuration class may log or load on the way.
HYBRIDS: dict[str, Callable[[], Any]] = {
    "qwen3_next": lambda: Qwen3NextConfig(**COMMON, **_DELTA, **_EXPERTS),
    "qwen3_5": lambda: Qwen3_5TextConfig(**COMMON, **_DELTA),
    "olmo_hybrid": lambda: OlmoHybridConfig(**COMMON, **_DELTA),
    "bamba": lambda: BambaConfig(**COMMON, **_MAMBA, attn_layer_indices=[1, 3]),
    "falcon_h1": lambda: FalconH1Config(**COMMON, **_MAMBA, mamba_d_ssm=96),
    "granitemoehybrid": lambda: GraniteMoeHybridConfig(
        **COMMON, **_MAMBA, layer_types=["mamba", "attention"] * 2, num_local_experts=0, shared_intermediate_size=64
    ),
    "nemotron_h": lambda: NemotronHConfig(
        **_WITHOUT_DEPTH,
        layers_block_type=["mamba", "attention", "mlp", "mamba", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=12,
        n_groups=2,
        ssm_state_size=16,
        chunk_size=16,
    ),
    "lara_mini": lambda: LaraMiniConfig(
        **COMMON,
        **{**_DELTA, "layer_types": ["linear_attention", "sliding_attention", "linear_attention", "full_attention"]},
        **_EXPERTS,
        sliding_window=8,
    ),
    "lfm2": lambda: Lfm2Config(**COMMON, layer_types=["conv", "full_attention"] * 2),
}

_folders = TemporaryDirectory(prefix="tokenspeed-hybrids-")


@cache
def saved_hybrid(shape: str) -> Path:
    """The folder of a random model of this shape; the same weights in every run."""
    torch.manual_seed(17)
    folder = Path(_folders.name) / shape
    AutoModelForCausalLM.from_config(HYBRIDS[shape]()).save_pretrained(folder)
    return folder
