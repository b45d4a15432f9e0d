"""A `transformers` decoder whose attention calls come to us.

Models reach attention through `transformers`' AttentionInterface by name. Ours looks for a decoder behind the calling
module, so two loaded models never meet. Which layers a model has is not read from its configuration but seen: one
short forward at load records every call, and a model that does anything we cannot do through block tables is
refused there, by the name of the layer.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from control_plane.errors import ConfigError
from data_plane.model.cpu_linear import MakeProduct, pack_linears
from data_plane.model.drivable import LAYER_TYPES, LayerFacts, check_config, check_layers, refused, rule_of
from data_plane.model.grouped import DecoderFacts, LayerCalls
from data_plane.model.layer_groups import attention_groups
from data_plane.model.probe import PROBE_TOKENS, Probe
from data_plane.model.siblings import watching
from data_plane.recurrence.geometry import StatePart

IMPLEMENTATION = "tokenspeed_paged"


def _dispatch(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What `transformers` calls with tensors [1, heads, tokens, dim]; the result is [1, tokens, heads, dim]."""
    caller = cast("HookedDecoder", module.tokenspeed_caller)
    return caller.called(module, query, key, value, options), None


AttentionInterface.register(IMPLEMENTATION, _dispatch)


class HookedDecoder:
    """One decoder in evaluation mode, as a `GroupedDecoder`.

    `layers` are the numbers of its attention layers in calling order (None: all of its layers attend); `states` are
    what its other layers keep. Raises ConfigError when a layer cannot be driven through block tables.
    """

    def __init__(
        self,
        model: Any,
        *,
        layers: Sequence[int] | None = None,
        states: Mapping[int, tuple[StatePart, ...]] | None = None,
        make_product: MakeProduct | None = None,
    ) -> None:
        self._model = model.eval().requires_grad_(False)
        self._config = model.config.get_text_config()
        self._layers = tuple(range(self._config.num_hidden_layers) if layers is None else layers)
        self._states = dict(states or {})
        self._device = cast(torch.device, model.device)
        # Before packing, and by address: a head tied to the embedding is one tensor.
        weights_bytes = sum({tensor.data_ptr(): tensor.nbytes for tensor in model.parameters()}.values())
        self._calls: LayerCalls | None = None
        self._layer_of: dict[torch.nn.Module, int] = {}
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        model.set_attn_implementation(IMPLEMENTATION)
        for module in model.modules():
            # Not a submodule: a plain attribute, which nn.Module keeps out of state_dict and modules().
            module.tokenspeed_caller = self
        self._facts = self._describe(self._probe(), weights_bytes)
        self._pack(make_product)

    @property
    def facts(self) -> DecoderFacts:
        """What it is."""
        return self._facts

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    @torch.inference_mode()
    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, calls: LayerCalls
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`; every layer's attention goes to `calls`.

        `token_ids`, `positions` int64 [tokens]; `keep` int64 indices into them, possibly none.
        """
        with self._serving(calls):
            # The head costs as much as all layers of a small model: only the rows that sample go through it.
            selection = {"logits_to_keep": keep} if self._selects_logits else {}
            output = self._model(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **selection
            ).logits[0]
        return cast(torch.Tensor, output if self._selects_logits else output[keep])

    def window_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> Sequence[tuple[int, torch.Tensor, torch.Tensor]]:
        """None: all of its groups are kept, none is replayable."""
        return ()

    def called(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """One layer asks for attention."""
        calls = self._calls
        assert calls is not None, "attention outside of a round"
        layer = self._layer_of.get(module)
        if layer is None:
            layer = self._layer_of[module] = self._next_layer()
        rule = rule_of(module, query, options)
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return calls.attend(layer, query, key, value, rule)[None]

    def _next_layer(self) -> int:
        """The number of a layer that asks for the first time: they do so in the order of the forward."""
        if len(self._layer_of) == len(self._layers):
            raise refused(f"more modules than its {len(self._layers)} attention layers ask for attention")
        return self._layers[len(self._layer_of)]

    @contextmanager
    def _serving(self, calls: LayerCalls) -> Iterator[None]:
        self._calls = calls
        try:
            yield
        finally:
            self._calls = None

    def _probe(self) -> dict[int, LayerFacts]:
        """Run a few tokens and see what each layer asks for."""
        probe = Probe(self._states)
        positions = torch.arange(PROBE_TOKENS, device=self._device)
        self.logits(torch.zeros_like(positions), positions, positions[:0], probe)
        check_layers(probe.layers, self._model, expected=len(self._layers))
        return probe.layers

    def _describe(self, layers: dict[int, LayerFacts], weights_bytes: int) -> DecoderFacts:
        context = int(self._config.max_position_embeddings)
        return DecoderFacts(
            vocab_size=int(self._config.vocab_size),
            max_context_tokens=context,
            stop_token_ids=self._stop_token_ids(),
            weights_bytes=weights_bytes,
            dtype=layers[self._layers[0]].dtype,
            attention=attention_groups(layers, max_context_tokens=context),
            states=self._states,
        )

    def _stop_token_ids(self) -> tuple[int, ...]:
        """The end-of-sequence tokens of the generation configuration, else of the model's."""
        found = getattr(getattr(self._model, "generation_config", None), "eos_token_id", None)
        if found is None:
            found = getattr(self._config, "eos_token_id", None)
        if found is None:
            return ()
        return tuple(int(token) for token in (found if isinstance(found, (list, tuple)) else [found]))

    def _pack(self, make_product: MakeProduct | None) -> None:
        """Speed up the linear layers: those with the same input together, else each alone, else none.

        Some models read their weights by themselves, or need each product in memory of its own.
        """
        with watching(self._model) as siblings:
            self._probe()
        for together in (siblings.groups(), []):
            undo = pack_linears(self._model, together, make_product)
            try:
                self._probe()
                return
            except Exception:  # whatever it was, with the plain weights it worked a moment ago
                undo()
        if make_product is not None:
            raise refused("it reads the weights of its linear layers by itself, so they cannot be quantized")


def load_decoder(folder: Path, *, device: str, dtype: str, make_product: MakeProduct | None = None) -> HookedDecoder:
    """The decoder in a `transformers` folder, on `device`. `make_product`: see `pack_linears`.

    `dtype` "auto" is float32 on a CPU, where `generate()` can be matched token by token, and the model's own on CUDA.
    Raises ConfigError when the folder cannot be loaded, or is not a decoder that block tables can drive.
    """
    model = load_transformer(folder, device=device, dtype=dtype, layer_types=LAYER_TYPES)
    return HookedDecoder(model, make_product=make_product)


def load_transformer(folder: Path, *, device: str, dtype: str, layer_types: Sequence[str]) -> Any:
    """The model in a `transformers` folder, on `device`, whose layers are of these types. See `load_decoder`."""
    name = ("float32" if device == "cpu" else "auto") if dtype == "auto" else dtype
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        check_config(config, layer_types)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=name, local_files_only=True)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise refused(f"transformers cannot load {folder}: {error}") from error
    return model.to(device)
