"""A `transformers` decoder with recurrent layers beside its attention layers, as a `GroupedDecoder`.

The whole model runs packed, as every decoder does here. Its attention calls come to us through `hf`, its recurrent
layers through `hf_states`; what lies between them never learns that there are several rows.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from data_plane.model.cpu_linear import MakeProduct
from data_plane.model.drivable import LAYER_TYPES
from data_plane.model.grouped import LayerCalls
from data_plane.model.hf import HookedDecoder, load_transformer
from data_plane.model.hf_observe import keeps_states
from data_plane.model.hf_states import RecurrentLayers

# Besides attention: recurrent layers, both in one layer, and layers that look at one token at a time.
HYBRID_LAYER_TYPES = (*LAYER_TYPES, "linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "mlp", "moe")


class HybridDecoder(HookedDecoder):
    """A model with attention and recurrent layers, in evaluation mode.

    Raises ConfigError when one of its layers cannot be driven through block tables.
    """

    def __init__(self, model: Any, make_product: MakeProduct | None = None) -> None:
        self._recurrent = RecurrentLayers(model.eval().requires_grad_(False))
        attending, states = self._recurrent.attention_layers, self._recurrent.parts
        super().__init__(model, layers=attending, states=states, make_product=make_product)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, calls: LayerCalls
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`."""
        with self._recurrent.serving(calls):
            return super().logits(token_ids, positions, keep, calls)


def is_hybrid(folder: Path) -> bool:
    """Whether the model in a `transformers` folder has recurrent layers. What cannot be read is none: see `hf`."""
    try:
        return keeps_states(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError):
        return False


def load_hybrid(folder: Path, *, device: str, dtype: str, make_product: MakeProduct | None = None) -> HybridDecoder:
    """The hybrid decoder in a `transformers` folder, on `device`; options as for `hf.load_decoder`.

    Raises ConfigError when the folder cannot be loaded, or is not a decoder that block tables can drive.
    """
    model = load_transformer(folder, device=device, dtype=dtype, layer_types=HYBRID_LAYER_TYPES)
    return HybridDecoder(model, make_product)
