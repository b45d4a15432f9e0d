"""A small hybrid language model with random weights, for what state and replayable groups must do.

It writes nothing that means anything: its next token depends on every token before it, through attention over keys
and values, and through recurrent states. Whoever loses, mixes up or repeats a piece of either sees other tokens.
Two shapes have names: "hybrid" alternates recurrent and full attention layers; "hybrid-replay" has full attention
over a first layer with a short window, whose rows follow from tokens and positions and are fed again rather than kept.
"""

from collections.abc import Sequence

import torch
from msgspec import Struct
from torch import nn

from control_plane.errors import ConfigError
from data_plane.model.grouped import AttentionGroup, DecoderFacts, LayerCalls
from data_plane.model.recurrent_layers import Attention, GatedRecurrence, Mlp

# Larger than usual: the logits of small random weights are all alike, and the choice of a token should be a clear one.
EMBEDDING_SCALE = 1.0
WEIGHT_SCALE = 1.5


class RecurrentShape(Struct, frozen=True):
    """`layers` are "recurrent", "full" or "window" from the bottom up; a "window" may only be the first.

    The same shape has the same weights, drawn from `seed`.
    """

    layers: tuple[str, ...]
    window: int = 0
    vocab_size: int = 512
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    state_dim: int = 16
    conv_tokens: int = 4
    max_context_tokens: int = 8192
    seed: int = 0


SHAPES = {
    "hybrid": RecurrentShape(("recurrent", "full", "recurrent", "full")),
    "hybrid-replay": RecurrentShape(("window", "full", "full"), window=32),
}


class RecurrentDecoder(nn.Module):
    """The model of `shape` in float32, as a `GroupedDecoder`."""

    def __init__(self, shape: RecurrentShape, *, device: torch.device | str = "cpu") -> None:
        super().__init__()
        assert "full" in shape.layers, "no layer that sees everything: positions would have no group to come from"
        assert "window" not in shape.layers[1:], "rows above the first layer depend on more than tokens and positions"
        self._shape = shape
        # The weights come from the seed below; what torch puts there first must not disturb anyone's random numbers.
        with torch.random.fork_rng(devices=[]):
            self.embedding = nn.Embedding(shape.vocab_size, shape.width)
            self.blocks = nn.ModuleList(_Block(kind, shape) for kind in shape.layers)
            self.norm = nn.RMSNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.eval().requires_grad_(False)
        _draw_weights(self, shape.seed)
        self.to(device)

    @property
    def facts(self) -> DecoderFacts:
        """What it is."""
        shape, dtype = self._shape, self.embedding.weight.dtype
        groups = []
        for kind in ("full", "window"):
            layers = tuple(layer for layer, each in enumerate(shape.layers) if each == kind)
            if layers:
                replayable = kind == "window"
                groups.append(
                    AttentionGroup(
                        id="window" if replayable else "full",
                        kind="sliding" if replayable else "full",
                        layers=layers,
                        kv_heads=shape.kv_heads,
                        head_dim=shape.head_dim,
                        dtype=dtype,
                        window=shape.window if replayable else 0,
                        replayable=replayable,
                    )
                )
        mixers = {layer: block.mixer for layer, block in enumerate(self.blocks)}
        return DecoderFacts(
            vocab_size=shape.vocab_size,
            max_context_tokens=shape.max_context_tokens,
            stop_token_ids=(),
            weights_bytes=sum(weight.nbytes for weight in self.parameters()),
            dtype=dtype,
            attention=tuple(groups),
            states={layer: each.state_parts() for layer, each in mixers.items() if isinstance(each, GatedRecurrence)},
        )

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.embedding.weight.device

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor, calls: LayerCalls
    ) -> torch.Tensor:
        """[len(keep), vocabulary] of the packed tokens `keep`."""
        hidden = self.embedding(token_ids)
        for layer, block in enumerate(self.blocks):
            hidden = block(hidden, positions, layer, calls)
        logits: torch.Tensor = self.head(self.norm(hidden[keep]))
        return logits

    def window_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> Sequence[tuple[int, torch.Tensor, torch.Tensor]]:
        """The first layer's keys and values of these tokens."""
        first = self.blocks[0]
        assert isinstance(first, _Block)
        assert isinstance(first.mixer, Attention)
        return [(0, *first.mixer.rows(first.norm(self.embedding(token_ids)), positions))]


def load_recurrent(name: str, *, device: str, dtype: str) -> RecurrentDecoder:
    """The model of a name in `SHAPES`, on `device`. Raises ConfigError for a dtype other than its own, float32."""
    if dtype not in ("auto", "float32"):
        raise ConfigError([f"dtype={dtype!r} is not for model={name!r}, which computes in float32: use dtype='auto'"])
    return RecurrentDecoder(SHAPES[name], device=device)


class _Block(nn.Module):
    """One layer: a mixer over tokens, then an MLP, each added to what came in."""

    def __init__(self, kind: str, shape: RecurrentShape) -> None:
        super().__init__()
        assert kind in ("recurrent", "full", "window"), f"no layer is of kind {kind!r}"
        self.norm = nn.RMSNorm(shape.width)
        self.mixer: Attention | GatedRecurrence
        if kind == "recurrent":
            self.mixer = GatedRecurrence(
                width=shape.width,
                heads=shape.heads,
                head_dim=shape.head_dim,
                state_dim=shape.state_dim,
                conv_tokens=shape.conv_tokens,
            )
        else:
            self.mixer = Attention(
                width=shape.width,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                window=shape.window if kind == "window" else 0,
            )
        self.mlp_norm = nn.RMSNorm(shape.width)
        self.mlp = Mlp(width=shape.width, inner=2 * shape.width)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, layer: int, calls: LayerCalls) -> torch.Tensor:
        normed = self.norm(hidden)
        if isinstance(self.mixer, GatedRecurrence):
            hidden = hidden + self.mixer(normed, layer, calls)
        else:
            hidden = hidden + self.mixer(normed, positions, layer, calls)
        mixed: torch.Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return mixed


def _draw_weights(model: nn.Module, seed: int) -> None:
    """Normal weights that neither vanish nor grow through a layer; norms stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, EMBEDDING_SCALE, generator=generator)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            fan_in = module.weight[0].numel()
            module.weight.normal_(0.0, WEIGHT_SCALE * fan_in**-0.5, generator=generator)
            if module.bias is not None:
                # The decay's only bias: most heads remember for tens of tokens, as trained ones do.
                module.bias.fill_(3.0)
