"""The layers of the small hybrid model: attention, a gated linear recurrence behind a short convolution, and an MLP.

None of them remembers anything. Attention and recurrence hand what must be remembered to the round (`LayerCalls`).
"""

import torch
import torch.nn.functional as F
from torch import nn

from data_plane.attention.kernels import LayerRule
from data_plane.model.grouped import LayerCalls
from data_plane.recurrence.geometry import StatePart
from data_plane.recurrence.paged import States

# Tokens that a scan takes together. Longer pieces cost more products among themselves, shorter ones more steps.
SCAN_TOKENS = 32
ROPE_BASE = 10_000.0


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; `window` 0 sees everything."""

    def __init__(self, *, width: int, heads: int, kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._rule = LayerRule(scale=head_dim**-0.5, window=window)
        self.query = nn.Linear(width, heads * head_dim, bias=False)
        self.key_value = nn.Linear(width, 2 * kv_heads * head_dim, bias=False)
        self.output = nn.Linear(heads * head_dim, width, bias=False)

    def rows(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [tokens, kv_heads, head_dim] of `hidden` [tokens, width]."""
        key, value = self.key_value(hidden).view(-1, 2, self._kv_heads, self._head_dim).unbind(1)
        return rotate(key, positions), value

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, layer: int, calls: LayerCalls) -> torch.Tensor:
        """[tokens, width] to [tokens, width]."""
        query = rotate(self.query(hidden).view(-1, self._heads, self._head_dim), positions)
        key, value = self.rows(hidden, positions)
        attended = calls.attend(layer, query, key, value, self._rule)
        mixed: torch.Tensor = self.output(attended.flatten(1))
        return mixed


class GatedRecurrence(nn.Module):
    """A matrix for each head that decays by a gate and learns one key and value a token.

    The last `conv_tokens` tokens are mixed first, so its states are the convolution's earlier inputs
    [channels, conv_tokens - 1] and the matrices [heads, state_dim, head_dim].
    """

    def __init__(self, *, width: int, heads: int, head_dim: int, state_dim: int, conv_tokens: int) -> None:
        super().__init__()
        self._heads, self._head_dim, self._state_dim = heads, head_dim, state_dim
        self._split = [heads * state_dim, heads * state_dim, heads * head_dim]
        channels = sum(self._split)
        self.mixed = nn.Linear(width, channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, conv_tokens, groups=channels, bias=False)
        self.decay = nn.Linear(width, heads)
        self.gate = nn.Linear(width, heads * head_dim, bias=False)
        self.output = nn.Linear(heads * head_dim, width, bias=False)

    def state_parts(self) -> tuple[StatePart, ...]:
        """What one row keeps."""
        conv = (self.conv.in_channels, self.conv.kernel_size[0] - 1)
        dtype = self.conv.weight.dtype
        return StatePart(conv, dtype), StatePart((self._heads, self._state_dim, self._head_dim), dtype)

    def forward(self, hidden: torch.Tensor, layer: int, calls: LayerCalls) -> torch.Tensor:
        """[tokens, width] to [tokens, width]."""
        inputs = torch.cat([self.mixed(hidden), F.logsigmoid(self.decay(hidden))], dim=-1)
        read = calls.recur(layer, inputs, self.step)
        gated: torch.Tensor = self.output(F.silu(self.gate(hidden)) * read)
        return gated

    def step(self, inputs: torch.Tensor, states: States) -> tuple[torch.Tensor, States]:
        """Convolve and scan: inputs [rows, tokens, channels + heads] to outputs [rows, tokens, heads * head_dim]."""
        conv_state, matrices = states
        mixed, log_decay = torch.split(inputs, [self.conv.in_channels, self._heads], dim=-1)
        seen = torch.cat([conv_state, mixed.transpose(1, 2)], dim=-1)
        query, key, value = torch.split(F.silu(self.conv(seen)).transpose(1, 2), self._split, dim=-1)
        outputs, matrices = scan(
            _by_head(query, self._heads) * self._state_dim**-0.5,
            _by_head(key, self._heads),
            _by_head(value, self._heads),
            log_decay.transpose(1, 2),
            matrices,
        )
        return outputs.transpose(1, 2).flatten(2), (seen[..., -conv_state.shape[-1] :], matrices)


class Mlp(nn.Module):
    """Two products and a gate."""

    def __init__(self, *, width: int, inner: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 2 * inner, bias=False)
        self.output = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, width] to [tokens, width]."""
        gate, value = self.inner(hidden).chunk(2, dim=-1)
        mixed: torch.Tensor = self.output(F.silu(gate) * value)
        return mixed


def scan(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, log_decay: torch.Tensor, matrices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every token t: `matrix = exp(log_decay[t]) * matrix + key[t] x value[t]`, and `query[t] @ matrix` is read.

    `query`, `key` are [rows, heads, tokens, state_dim], `value` [rows, heads, tokens, head_dim], `log_decay` [rows,
    heads, tokens], none of it positive, `matrices` [rows, heads, state_dim, head_dim]. Returns what was read [rows,
    heads, tokens, head_dim] and the matrices after the last token.
    """
    reads = []
    for begin in range(0, query.shape[2], SCAN_TOKENS):
        piece = slice(begin, begin + SCAN_TOKENS)
        q, k, v = query[:, :, piece], key[:, :, piece], value[:, :, piece]
        # decayed[t]: how much of the matrix before the piece is left after t. between[t, s]: of what s added.
        total = log_decay[:, :, piece].cumsum(dim=-1)
        decayed = total.exp()[..., None]
        between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        reads.append(decayed * (q @ matrices) + (between * (q @ k.transpose(-1, -2))) @ v)
        matrices = decayed[:, :, -1:] * matrices + (between[:, :, -1, :, None] * k).transpose(-1, -2) @ v
    return torch.cat(reads, dim=2), matrices


def rotate(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions: `heads` [tokens, heads, dim] turned by `positions` int64 [tokens]."""
    half = heads.shape[-1] // 2
    speeds = ROPE_BASE ** (-torch.arange(half, device=heads.device, dtype=torch.float32) / half)
    angles = positions[:, None, None] * speeds
    sin, cos = angles.sin().to(heads.dtype), angles.cos().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _by_head(channels: torch.Tensor, heads: int) -> torch.Tensor:
    """[rows, tokens, heads * dim] as [rows, heads, tokens, dim]."""
    return channels.reshape(*channels.shape[:2], heads, -1).transpose(1, 2)
