"""A `transformers` decoder with recurrent layers beside its attention layers, as a `GroupedDecoder`.

The whole model runs packed, as every decoder does here. Its attention calls come to us through `hf`, its recurrent
layers through `hf_states`; what lies between them never learns that there are several rows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from control_plane.errors import ConfigError
from data_plane.attention.kernels import LayerRule, attend
from data_plane.model.drivable import LAYER_TYPES, LayerFacts, check_layers, refused
from data_plane.model.grouped import AttentionGroup, DecoderFacts, LayerCalls
from data_plane.model.hf import PROBE_TOKENS, HookedDecoder
from data_plane.model.hf_observe import keeps_states
from data_plane.model.hf_states import RecurrentLayers

# Besides attention: recurrent layers, both in one layer, and layers that look at one token at a time.
HYBRID_LAYER_TYPES = (*LAYER_TYPES, "linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "mlp", "moe")


class HybridDecoder:
    """A model with attention and recurrent layers, in evaluation mode.

    Raises ConfigError when one of its layers cannot be driven through block tables.
    """

    def __init__(self, model: Any) -> None:
        model.eval().requires_grad_(False)
        self._recurrent = RecurrentLayers(model)
        self._hooked = _AttentionLayers(model, self._recurrent)
        self._facts = _facts(self._hooked, self._recurrent)

    @property
    def facts(self) -> DecoderFacts:
        """What it is."""
        return self._facts

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._hooked.device

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, calls: LayerCalls
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`."""
        layers = self._recurrent.attention_layers

        def hook(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
        ) -> torch.Tensor:
            return calls.attend(layers[layer], query, key, value, rule)

        with self._recurrent.serving(calls):
            return self._hooked.logits(token_ids, positions, keep, hook)

    def window_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> Sequence[tuple[int, torch.Tensor, torch.Tensor]]:
        """None: all of its groups are kept, none is replayable."""
        return ()


class _AttentionLayers(HookedDecoder):
    """The attention layers, which are not all of the model's layers."""

    def __init__(self, model: Any, recurrent: RecurrentLayers) -> None:
        self._recurrent = recurrent
        super().__init__(model)

    def _probe(self) -> tuple[LayerFacts, ...]:
        """Run a few tokens of one sequence; every layer that caches keys and values must come to us with them."""
        seen: list[LayerFacts] = []

        def record(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
        ) -> torch.Tensor:
            if layer != len(seen):
                raise refused(f"attention layer {layer} is used more than once in a forward")
            seen.append(LayerFacts(key.shape[1], key.shape[2], value.shape[2], key.dtype, rule))
            query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
            return attend(query, key, value, rule, mask=None, causal=True)[0].transpose(0, 1)

        positions = torch.arange(PROBE_TOKENS, device=self.device)
        with self._recurrent.from_nothing():
            self.logits(torch.zeros_like(positions), positions, positions[:0], record)
        check_layers(seen, self.model, expected=len(self._recurrent.attention_layers))
        return tuple(seen)


def _facts(hooked: HookedDecoder, recurrent: RecurrentLayers) -> DecoderFacts:
    first, config = hooked.layers[0], hooked.config
    # A sliding layer's blocks are kept as long as a full one's; its window is applied when it reads.
    attention = AttentionGroup(
        id="full",
        kind="full",
        layers=recurrent.attention_layers,
        kv_heads=first.kv_heads,
        head_dim=first.key_dim,
        dtype=first.dtype,
    )
    return DecoderFacts(
        vocab_size=int(config.vocab_size),
        max_context_tokens=int(config.max_position_embeddings),
        stop_token_ids=_stop_token_ids(hooked),
        weights_bytes=hooked.weights_bytes,
        dtype=first.dtype,
        attention=(attention,),
        states=recurrent.parts,
    )


def _stop_token_ids(hooked: HookedDecoder) -> tuple[int, ...]:
    """The end-of-sequence tokens of the generation configuration, else of the model's."""
    found = getattr(getattr(hooked.model, "generation_config", None), "eos_token_id", None)
    if found is None:
        found = getattr(hooked.config, "eos_token_id", None)
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, (list, tuple)) else [found]))


def _check_config(config: Any) -> None:
    """Refuse what a look at the configuration can tell, before any weights are read. Raises ConfigError."""
    if getattr(config, "is_encoder_decoder", False):
        raise refused(f"{config.model_type} is an encoder-decoder; give a decoder-only model")
    text = config.get_text_config()
    for index, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind not in HYBRID_LAYER_TYPES:
            raise refused(
                f"layer {index} of {text.model_type} is of type {kind!r}; supported: {', '.join(HYBRID_LAYER_TYPES)}"
            )


def is_hybrid(folder: Path) -> bool:
    """Whether the model in a `transformers` folder has recurrent layers. What cannot be read is none: see `hf`."""
    try:
        return keeps_states(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError):
        return False


def load_hybrid(folder: Path, *, device: str, dtype: str) -> HybridDecoder:
    """The hybrid decoder in a `transformers` folder, on `device`; `dtype` as for `hf.load_decoder`.

    Raises ConfigError when the folder cannot be loaded, or is not a decoder that block tables can drive.
    """
    name = ("float32" if device == "cpu" else "auto") if dtype == "auto" else dtype
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_config(config)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=name, local_files_only=True)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise refused(f"transformers cannot load {folder}: {error}") from error
    return HybridDecoder(model.to(device))
