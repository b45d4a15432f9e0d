"""Which modules of a `transformers` model are recurrent, and what they keep: not read from the configuration, but seen.

One short forward runs with a cache that notes who asks for what.
"""

import inspect
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from data_plane.model.drivable import refused
from data_plane.model.probe import PROBE_TOKENS
from data_plane.recurrence.geometry import StatePart

# What models and layers call the argument that takes their cache, in this and earlier versions of transformers.
CACHE_ARGUMENTS = ("cache", "cache_params", "past_key_values")

# Which state of a layer: "conv" or "recurrent", and its number among them.
Place = tuple[str, int]


def keeps_states(config: Any) -> bool:
    """Whether a model of this configuration has recurrent layers, as transformers' own cache knows them."""
    layers = DynamicCache(config=config.get_text_config()).layers
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers)


class Observation(DynamicCache):
    """What one forward of a model showed. Raises ConfigError when it does not run, or hides what it remembers.

    `attention_layers` put keys and values into the cache, in calling order; `modules` are the recurrent ones by layer.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(config=model.config.get_text_config())
        self.attention_layers: list[int] = []
        self.modules: dict[int, torch.nn.Module] = {}
        self._running: list[torch.nn.Module] = []
        try:
            self._observe(model)
        except Exception as error:  # whatever it was: the model does not run with the cache of its configuration
            raise refused(f"{model.config.model_type} fails on its first tokens: {error}") from error
        self._check_complete(model.config.model_type)

    def places(self, layer: int) -> tuple[Place, ...]:
        """The states that a recurrent layer filled, those of convolutions first."""
        kept: Any = self.layers[layer]
        return tuple(
            (kind, index)
            for kind, states in (("conv", kept.conv_states), ("recurrent", kept.recurrent_states))
            for index, state in states.items()
            if state is not None
        )

    def part(self, layer: int, place: Place) -> StatePart:
        """What one row keeps of a state."""
        kind, index = place
        state: torch.Tensor = getattr(self.layers[layer], f"{kind}_states")[index]
        return StatePart(tuple(state.shape[1:]), state.dtype)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **options: Any) -> Any:
        """An attention layer caches keys and values."""
        self.attention_layers.append(layer_idx)
        return super().update(key_states, value_states, layer_idx, *args, **options)

    def update_conv_state(self, conv_states: Any, layer_idx: int, *args: Any, **options: Any) -> Any:
        """A recurrent layer has new inputs of its convolution."""
        self.modules[layer_idx] = self._running[-1]
        return super().update_conv_state(conv_states, layer_idx, *args, **options)

    def update_recurrent_state(self, recurrent_states: Any, layer_idx: int, *args: Any, **options: Any) -> Any:
        """A recurrent layer has a new state."""
        self.modules[layer_idx] = self._running[-1]
        return super().update_recurrent_state(recurrent_states, layer_idx, *args, **options)

    def _check_complete(self, model_type: str) -> None:
        """Every layer that should remember did so through the cache; what it hid elsewhere, rows would share."""
        for layer, kept in enumerate(self.layers):
            states = not isinstance(kept, LinearAttentionCacheLayerMixin) or layer in self.modules
            rows = not isinstance(kept, CacheLayerMixin) or layer in self.attention_layers
            if not (states and rows):
                raise refused(f"layer {layer} of {model_type} does not keep what it remembers in transformers' cache")

    @torch.inference_mode()
    def _observe(self, model: Any) -> None:
        def enter(module: torch.nn.Module, args: Any) -> None:
            self._running.append(module)

        def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
            self._running.pop()

        hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
        hooks += [module.register_forward_hook(leave) for module in model.modules()]
        name = next(each for each in CACHE_ARGUMENTS if each in inspect.signature(model.forward).parameters)
        positions = torch.arange(PROBE_TOKENS, device=model.device)[None]
        try:
            model(input_ids=torch.zeros_like(positions), position_ids=positions, use_cache=True, **{name: self})
        finally:
            for hook in hooks:
                hook.remove()
