"""Which decoders block tables can drive. What they cannot is refused at load, by the name of the layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.attention.kernels import LayerRule

LAYER_TYPES = ("full_attention", "sliding_attention", "attention")


class LayerFacts(Struct, frozen=True):
    """What one attention call asked for: its shapes, and the rule by which it reads."""

    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    rule: LayerRule


def check_config(config: Any, layer_types: Sequence[str] = LAYER_TYPES) -> None:
    """Refuse what a look at the configuration can tell, before any weights are read. Raises ConfigError.

    `layer_types` are the types of layers that may be there.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise refused(f"{config.model_type} is an encoder-decoder; give a decoder-only model")
    text = config.get_text_config()
    for index, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind not in layer_types:
            raise refused(
                f"layer {index} of {text.model_type} is of type {kind!r}; supported: {', '.join(layer_types)}"
            )
    if getattr(text, "use_bidirectional_attention", False):
        raise refused(f"{text.model_type} attends in both directions; give a causal model")


def rule_of(module: torch.nn.Module, query: torch.Tensor, options: dict[str, Any]) -> LayerRule:
    """What a layer asks for, from the arguments that transformers passes. Raises ConfigError for what we lack."""
    layer = f"layer {getattr(module, 'layer_idx', '?')} ({type(module).__name__})"
    if options.get("s_aux") is not None or options.get("position_bias") is not None:
        raise refused(f"{layer} uses attention sinks or a position bias")
    if options.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise refused(f"{layer} is not causal")
    scale = options.get("scaling")
    return LayerRule(
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        window=int(options.get("sliding_window") or 0),
        softcap=float(options.get("softcap") or 0.0),
    )


def check_layers(seen: Mapping[int, LayerFacts], model: Any, *, expected: int) -> None:
    """Refuse a model some of whose `expected` layers did not attend, or cannot be stored. Raises ConfigError."""
    if len(seen) != expected:
        kinds = sorted({type(layer).__name__ for layer in _decoder_layers(model, expected)})
        raise refused(
            f"{len(seen)} of its {expected} layers ({', '.join(kinds) or type(model).__name__}) "
            f"reach attention through transformers' AttentionInterface; every layer must"
        )
    for layer, facts in seen.items():
        if facts.key_dim != facts.value_dim:
            raise refused(
                f"layer {layer} has keys of {facts.key_dim} and values of {facts.value_dim} numbers a head; "
                f"keys and values must be of one size"
            )


def refused(reason: str) -> ConfigError:
    """A model that cannot be served, and why."""
    return ConfigError([f"model: {reason}"])


def _decoder_layers(model: Any, count: int) -> list[torch.nn.Module]:
    """The stack of `count` layers, for a message; empty when there is no such list."""
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    return list(stacks[0]) if stacks else []
