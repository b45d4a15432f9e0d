"""A `transformers` decoder whose attention calls come to us.

Models reach attention through `transformers`' AttentionInterface by name. Ours looks for a hook on the calling
module, so two loaded models never meet. Which layers a model has is not read from its configuration but seen: one
short forward at load records every call, and a model that does anything we cannot do through block tables is
refused there, by the name of the layer.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from control_plane.errors import ConfigError
from data_plane.attention.kernels import LayerRule, attend
from data_plane.model.cpu_linear import pack_linears
from data_plane.model.drivable import LayerFacts, check_config, check_layers, refused, rule_of

IMPLEMENTATION = "tokenspeed_paged"
PROBE_TOKENS = 4


class AttentionHook(Protocol):
    """Receives one layer's packed queries, keys and values [tokens, heads, dim]; returns [tokens, heads, dim]."""

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor: ...


class _Caller(Protocol):
    """Whoever stands behind the modules of one model."""

    def called(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor: ...


def _dispatch(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What `transformers` calls with tensors [1, heads, tokens, dim]; the result is [1, tokens, heads, dim]."""
    caller = cast(_Caller, module.tokenspeed_caller)
    return caller.called(module, query, key, value, options), None


AttentionInterface.register(IMPLEMENTATION, _dispatch)


class HookedDecoder:
    """One decoder in evaluation mode, its attention layers in calling order, and a way to run it packed.

    Raises ConfigError when a layer cannot be driven through block tables.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self.device = cast(torch.device, model.device)
        # By address: a head tied to the embedding is one tensor.
        self.weights_bytes = sum({tensor.data_ptr(): tensor.nbytes for tensor in model.parameters()}.values())
        self._hook: AttentionHook | None = None
        self._layer_of: dict[torch.nn.Module, int] = {}
        self._selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        model.set_attn_implementation(IMPLEMENTATION)
        for module in model.modules():
            # Not a submodule: a plain attribute, which nn.Module keeps out of state_dict and modules().
            module.tokenspeed_caller = self
        self.layers = self._probe()
        self._pack()

    @torch.inference_mode()
    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, hook: AttentionHook
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`; every layer's attention goes to `hook`.

        `token_ids`, `positions` int64 [tokens]; `keep` int64 indices into them, possibly none.
        """
        with self._hooked(hook):
            # The head costs as much as all layers of a small model: only the rows that sample go through it.
            selection = {"logits_to_keep": keep} if self._selects_logits else {}
            output = self.model(
                input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **selection
            ).logits[0]
        return cast(torch.Tensor, output if self._selects_logits else output[keep])

    def called(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: dict[str, Any],
    ) -> torch.Tensor:
        """One layer asks for attention."""
        hook = self._hook
        assert hook is not None, "attention outside of a round"
        if module not in self._layer_of:
            self._layer_of[module] = len(self._layer_of)
        rule = rule_of(module, query, options)
        query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return hook(self._layer_of[module], query, key, value, rule)[None]

    @contextmanager
    def _hooked(self, hook: AttentionHook) -> Iterator[None]:
        self._hook = hook
        try:
            yield
        finally:
            self._hook = None

    def _probe(self) -> tuple[LayerFacts, ...]:
        """Run a few tokens and record each layer's call."""
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
        self.logits(torch.zeros_like(positions), positions, positions[:0], record)
        check_layers(seen, self.model, expected=int(self.config.num_hidden_layers))
        return tuple(seen)

    def _pack(self) -> None:
        """Speed up the linear layers, unless the model reads their weights by itself."""
        undo = pack_linears(self.model)
        try:
            self._probe()
        except Exception:  # whatever it was, with the plain weights it worked a moment ago
            undo()


def load_decoder(folder: Path, *, device: str, dtype: str) -> HookedDecoder:
    """The decoder in a `transformers` folder, on `device`.

    `dtype` "auto" is float32 on a CPU, where `generate()` can be matched token by token, and the model's own on CUDA.
    Raises ConfigError when the folder cannot be loaded, or is not a decoder that block tables can drive.
    """
    name = ("float32" if device == "cpu" else "auto") if dtype == "auto" else dtype
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        check_config(config)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=name, local_files_only=True)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise refused(f"transformers cannot load {folder}: {error}") from error
    return HookedDecoder(model.to(device))
