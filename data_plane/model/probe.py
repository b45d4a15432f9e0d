"""A round that is none: a few tokens of one sequence run through a decoder, to see what its layers ask for."""

from collections.abc import Mapping

import torch

from data_plane.attention.kernels import LayerRule, attend
from data_plane.model.drivable import LayerFacts, refused
from data_plane.recurrence.geometry import StatePart
from data_plane.recurrence.paged import Step, empty_states

PROBE_TOKENS = 4


class Probe:
    """Stands as `LayerCalls` where a round would: one sequence from its beginning, of which nothing is kept.

    `layers` are the attention layers that have asked so far, by their numbers; `states` what recurrent layers keep.
    """

    def __init__(self, states: Mapping[int, tuple[StatePart, ...]]) -> None:
        self.layers: dict[int, LayerFacts] = {}
        self._states = states

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor:
        """A layer's first call. Raises ConfigError for a second one, whose rows would take the first one's place."""
        if layer in self.layers:
            raise refused(f"attention layer {layer} is used more than once in a forward")
        self.layers[layer] = LayerFacts(key.shape[1], key.shape[2], value.shape[2], key.dtype, rule)
        # As if it saw everything: what the layer answers does not matter here.
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
        return attend(query, key, value, rule, mask=None, causal=True)[0].transpose(0, 1)

    def recur(self, layer: int, inputs: torch.Tensor, step: Step) -> torch.Tensor:
        """A recurrent layer starts from nothing."""
        return step(inputs[None], empty_states(self._states[layer], inputs.device))[0][0]
