"""The recurrent layers of a `transformers` model, with states that come from us.

Such layers take padded batches and keep their states in transformers' cache object. Ours stands in for it: a layer
is called once for each row of a round (and once for all decodes), with that row's states to read and to replace.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from data_plane.model.drivable import refused
from data_plane.model.grouped import LayerCalls
from data_plane.model.hf_observe import CACHE_ARGUMENTS, Observation, Place
from data_plane.model.probe import PROBE_TOKENS
from data_plane.recurrence.geometry import StatePart
from data_plane.recurrence.paged import States, Step, empty_states


class RecurrentLayers:
    """The recurrent layers of `model`, rerouted for good: from now on they run within `serving` only.

    `parts` says by layer what one row keeps. `attention_layers` are the layers that cache keys and values, in calling
    order. Raises ConfigError for a layer that cannot be driven this way.
    """

    def __init__(self, model: Any) -> None:
        seen = Observation(model)
        if not seen.attention_layers or not seen.modules:
            missing = "recurrent" if seen.attention_layers else "attention"
            raise refused(f"{model.config.model_type} has no {missing} layers; a hybrid has both")
        self.attention_layers = tuple(seen.attention_layers)
        self.parts: dict[int, tuple[StatePart, ...]] = {}
        self._calls: LayerCalls | None = None
        width = int(model.config.get_text_config().hidden_size)
        for layer, module in sorted(seen.modules.items()):
            places = seen.places(layer)
            self.parts[layer] = tuple(seen.part(layer, place) for place in places)
            inputs_name, step = _step_of(layer, module, places)
            self._check_continues(layer, module, step, width)
            # An instance's own `forward` is what nn.Module calls; the module stays what it is for whoever looks.
            module.__dict__["forward"] = self._rerouted(layer, inputs_name, step)

    @contextmanager
    def serving(self, calls: LayerCalls) -> Iterator[None]:
        """Within, the layers' states come from `calls`."""
        self._calls = calls
        try:
            yield
        finally:
            self._calls = None

    def _rerouted(self, layer: int, inputs_name: str, step: Step) -> Callable[..., torch.Tensor]:
        def forward(*args: Any, **options: Any) -> torch.Tensor:
            calls = self._calls
            assert calls is not None, "a recurrent layer outside of a round"
            packed = args[0] if args else options[inputs_name]
            return calls.recur(layer, packed[0], step)[None]

        return forward

    @torch.inference_mode()
    def _check_continues(self, layer: int, module: torch.nn.Module, step: Step, width: int) -> None:
        """Refuse a layer that, given several tokens, ignores a state before them: chunks would change its answer."""
        weight = next(module.parameters())
        noise = torch.Generator().manual_seed(0)
        inputs = torch.randn((1, PROBE_TOKENS, width), generator=noise).to(weight)
        expected, _ = step(inputs, empty_states(self.parts[layer], weight.device))
        for index in range(len(self.parts[layer])):
            states = empty_states(self.parts[layer], weight.device)
            states[index].copy_(torch.randn(states[index].shape, generator=noise))
            if torch.equal(step(inputs, states)[0], expected):
                raise refused(
                    f"layer {layer} ({type(module).__name__}) cannot go on from a state with several tokens at once"
                )


def _step_of(layer: int, module: torch.nn.Module, places: tuple[Place, ...]) -> tuple[str, Step]:
    """How the layer calls its inputs, and its computation as a function of inputs and states."""
    original = module.forward
    arguments = inspect.signature(original).parameters
    cache_name = next((name for name in CACHE_ARGUMENTS if name in arguments), None)
    if cache_name is None:
        raise refused(f"layer {layer} ({type(module).__name__}) takes no cache as an argument")

    def step(inputs: torch.Tensor, states: States) -> tuple[torch.Tensor, States]:
        cache = _GivenStates(dict(zip(places, states, strict=True)))
        # Nothing else is passed on: masks and packing describe the round, and this is one row of it.
        outputs = original(inputs, **{cache_name: cache})
        return outputs, tuple(cache.states[place] for place in places)

    return next(iter(arguments)), step


class _GivenStates:
    """Stands where a recurrent layer expects transformers' cache. Its methods are the ones that such layers call."""

    def __init__(self, states: dict[Place, torch.Tensor]) -> None:
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        return self.states["conv", state_idx]

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        return self.states["recurrent", state_idx]

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **options: Any
    ) -> torch.Tensor:
        """Returns everything that the convolution sees; its last inputs are the new state."""
        before = self.states["conv", state_idx]
        seen = torch.cat([before, conv_states], dim=-1)
        self.states["conv", state_idx] = seen[..., -before.shape[-1] :]
        return seen

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **options: Any
    ) -> torch.Tensor:
        self.states["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        """Whether states are kept for a rollback; ours never are."""
        return False
