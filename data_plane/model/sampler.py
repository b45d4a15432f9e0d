"""Chooses the next token of each row. What a row gets depends on its own logits, seed and position only."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Struct

from control_plane.messages import NO_LOGPROBS, SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.attention.ship import ship
from data_plane.batch.rows import RowLogprobs
from data_plane.model.adjustments import Adjustments, needs_adjustment
from data_plane.model.grammars import Grammars
from data_plane.model.logprobs import Asked, logprobs_of
from data_plane.model.noise import uniforms

# Sorting a vocabulary costs a CPU more than the layers of a small model. The most likely few almost always hold
# what top-k and top-p keep; a row for which they do not is done again over everything.
CPU_CANDIDATES = 1024
# Below this, logits divided by the temperature could overflow; the most likely token has all the mass anyway.
LEAST_TEMPERATURE = 1e-5


class _Filters(Struct, frozen=True):
    """One column a drawn row, float64 [rows, 1] on the device."""

    uniform: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor


class Choice(Struct, frozen=True):
    """The tokens of a batch: int64 [rows] on the device, int32 on the host once the round is done.

    `read_logprobs` gives what some rows asked for, also then; None when none did.
    """

    tokens: torch.Tensor
    host: torch.Tensor
    read_logprobs: Callable[[], RowLogprobs] | None


class Sampler:
    """Sampling settings of every slot, and the choice itself.

    Order: adjustments of the row (`adjustments.py`), temperature, top-k, top-p within what top-k left, min-p; then one
    uniform number inverts the cumulative distribution of what remains. Equal logits rank by token id. Work is
    vectorised over rows, but only by operations along a row.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        slots: int,
        device: torch.device,
        stop_token_ids: tuple[int, ...] = (),
        grammars: Grammars | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._stop_token_ids = stop_token_ids
        self._grammars = grammars
        self._temperature = np.zeros(slots, dtype=np.float64)
        self._top_k = np.zeros(slots, dtype=np.float64)
        self._top_p = np.ones(slots, dtype=np.float64)
        self._min_p = np.zeros(slots, dtype=np.float64)
        self._seed = np.zeros(slots, dtype=np.uint64)
        self._adjustments: dict[int, Adjustments] = {}
        self._asks: dict[int, int] = {}  # slot -> how many likeliest tokens are told beside the chosen one

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner with these settings and this history."""
        slot, sampling = binding.slot, binding.sampling
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k if 0 < sampling.top_k < self._vocab_size else self._vocab_size
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = sampling.seed % 2**64
        self._adjustments.pop(slot, None)
        self._asks.pop(slot, None)
        if sampling.logprobs != NO_LOGPROBS:
            self._asks[slot] = min(sampling.logprobs, self._vocab_size)
        if needs_adjustment(binding):
            self._adjustments[slot] = Adjustments(
                binding,
                vocab_size=self._vocab_size,
                stop_token_ids=self._stop_token_ids,
                device=self._device,
                grammars=self._grammars,
            )

    def sample(self, logits: torch.Tensor, *, slots: Int32s, positions: Int32s) -> torch.Tensor:
        """The next token of each row, int64 [rows] on the device. See `choose`."""
        return self.choose(logits, slots=slots, positions=positions).tokens

    def choose(self, logits: torch.Tensor, *, slots: Int32s, positions: Int32s) -> "Choice":
        """The next token of each row, and what its request wants to know of it.

        `logits` is [rows, vocabulary] and may be overwritten; `positions` says which token of its request each
        row chooses.
        """
        logits = logits.float()
        adjusted = self._adjusted(slots)
        for row, adjustments in adjusted:
            logits[row] = adjustments.apply(logits[row], position=int(positions[row]))
        tokens = self._choose(logits, slots, positions)
        host = torch.empty(len(tokens), dtype=torch.int32, pin_memory=tokens.is_cuda)
        host.copy_(tokens, non_blocking=True)
        for row, adjustments in adjusted:
            adjustments.chose(tokens, row, host)
        return Choice(tokens, host, self._score(logits, tokens, slots) if self._asks else None)

    def _adjusted(self, slots: Int32s) -> list[tuple[int, Adjustments]]:
        """The rows whose logits are changed before the choice."""
        if not self._adjustments:
            return []
        found = ((row, self._adjustments.get(slot)) for row, slot in enumerate(slots.tolist()))
        return [(row, adjustments) for row, adjustments in found if adjustments is not None]

    def _score(self, logits: torch.Tensor, tokens: torch.Tensor, slots: Int32s) -> Callable[[], RowLogprobs] | None:
        """Log probabilities of the rows that ask, under what was drawn from. Greedy: as at temperature 1."""
        wanted = [(row, self._asks[slot]) for row, slot in enumerate(slots.tolist()) if slot in self._asks]
        if not wanted:
            return None
        rows, widths = (np.array(column, dtype=np.int32) for column in zip(*wanted, strict=True))
        asking = slots[rows]
        greedy = self._temperature[asking] < LEAST_TEMPERATURE
        columns = np.stack(
            [
                np.where(greedy, 1.0, self._temperature[asking]),
                np.where(greedy, self._vocab_size, self._top_k[asking]),
                np.where(greedy, 1.0, self._top_p[asking]),
                np.where(greedy, 0.0, self._min_p[asking]),
            ]
        )
        _, top_k, top_p, min_p = columns
        is_filtered = bool(((top_k < self._vocab_size) | (top_p < 1.0) | (min_p > 0.0)).any())
        asked = Asked(rows, widths, self._to_device(columns[:, :, None]), is_filtered)
        (chosen,) = ship([rows], self._device)
        return logprobs_of(logits[chosen], tokens[chosen], asked)

    def _choose(self, logits: torch.Tensor, slots: Int32s, positions: Int32s) -> torch.Tensor:
        drawn = np.flatnonzero(self._temperature[slots] >= LEAST_TEMPERATURE)
        if len(drawn) == len(slots):
            tokens = self._draw(logits, slots, positions)
        else:
            tokens = logits.argmax(dim=-1)
            if len(drawn):
                (rows,) = ship([drawn], self._device)
                tokens[rows] = self._draw(logits[rows], slots[drawn], positions[drawn])
        return tokens

    def _draw(self, logits: torch.Tensor, slots: Int32s, positions: Int32s) -> torch.Tensor:
        """Draw every row, those that rank tokens apart from those that need no order."""
        uniform = uniforms(self._seed[slots], positions.astype(np.uint64))
        columns = np.stack(
            [self._temperature[slots], uniform, self._top_k[slots], self._top_p[slots], self._min_p[slots]]
        )
        temperature, *filters = self._to_device(columns[:, :, None])
        scaled = logits / temperature.to(torch.float32)
        ranks = (self._top_k[slots] < self._vocab_size) | (self._top_p[slots] < 1.0)
        if not ranks.any():
            return _draw_unordered(scaled, _Filters(*filters))
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        for chosen, draw in ((np.flatnonzero(ranks), self._draw_ranked), (np.flatnonzero(~ranks), _draw_unordered)):
            if len(chosen):
                (rows,) = ship([chosen], self._device)
                tokens[rows] = draw(scaled[rows], _Filters(*(column[rows] for column in filters)))
        return tokens

    def _draw_ranked(self, scaled: torch.Tensor, filters: _Filters) -> torch.Tensor:
        if self._device.type != "cpu" or self._vocab_size <= CPU_CANDIDATES:
            return _draw_among(scaled, filters, self._vocab_size)[0]
        tokens, complete = _draw_among(scaled, filters, CPU_CANDIDATES)
        (rows,) = torch.nonzero(~complete, as_tuple=True)
        if len(rows):
            rest = _Filters(filters.uniform[rows], filters.top_k[rows], filters.top_p[rows], filters.min_p[rows])
            tokens[rows] = _draw_among(scaled[rows], rest, self._vocab_size)[0]
        return tokens

    def _to_device(self, columns: npt.NDArray[np.float64]) -> torch.Tensor:
        packed = torch.from_numpy(columns)
        return packed.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else packed


def _draw_unordered(scaled: torch.Tensor, filters: _Filters) -> torch.Tensor:
    """Without top-k and top-p, tokens may stand in any order: by id, nothing is sorted."""
    probabilities = scaled.softmax(dim=-1)
    floor = filters.min_p.to(torch.float32) * probabilities.amax(dim=-1, keepdim=True)
    probabilities = torch.where(probabilities >= floor, probabilities, 0.0)
    mass = probabilities.cumsum(dim=-1, dtype=torch.float64)
    chosen = torch.searchsorted(mass, filters.uniform * mass[:, -1:], right=True)
    return chosen.clamp(max=scaled.shape[-1] - 1)[:, 0]


def _draw_among(scaled: torch.Tensor, filters: _Filters, candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from the `candidates` most likely tokens of each row.

    Returns the tokens, and for which rows these candidates held all that top-k or top-p keep: bool [rows].
    """
    values = scaled.topk(candidates, dim=-1).values
    probabilities = (values - scaled.logsumexp(dim=-1, keepdim=True)).exp().double()
    rank = torch.arange(candidates, device=scaled.device)
    within_k = torch.where(rank < filters.top_k, probabilities, 0.0)
    mass = within_k.cumsum(dim=-1)
    everything = torch.where(filters.top_k < scaled.shape[-1], mass[:, -1:], 1.0)
    wanted = filters.top_p * everything
    # The smallest set of most likely tokens that reaches the wanted mass: whatever still lacked some before it.
    kept = (mass - within_k < wanted) & (probabilities >= filters.min_p * probabilities[:, :1]) & (within_k > 0)
    last_kept = (kept.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    chosen = torch.searchsorted(mass, filters.uniform * mass.gather(1, last_kept), right=True)
    chosen = torch.minimum(chosen, last_kept)
    complete = (filters.top_k <= candidates) | (mass[:, -1:] >= wanted)
    return _token_of_rank(scaled, values, chosen), complete[:, 0]


def _token_of_rank(scaled: torch.Tensor, values: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """The token at `rank` int64 [rows, 1] of descending `values`; equal values rank by token id."""
    value = values.gather(1, rank)
    equals_before = rank - (values > value).sum(dim=-1, keepdim=True)
    matches = scaled == value
    return (matches & (matches.cumsum(dim=-1) == equals_before + 1)).int().argmax(dim=-1)
