"""What every torch runner does around its layers: which tokens are fed, and which come next."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from msgspec import structs

from control_plane.messages import NOT_SAMPLED, SlotBinding
from control_plane.messages.columns import Int32s, pack, view
from data_plane.attention.ship import ship
from data_plane.batch.rows import RowLogprobs, Rows
from data_plane.model.grammars import Grammars
from data_plane.model.sampler import Sampler

NO_TOKENS: Int32s = np.empty(0, dtype=np.int32)


class NextTokens:
    """The last token of every slot, on the device, so that a decode needs nothing from the host but lengths."""

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
        self._last = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sampler = Sampler(
            vocab_size=vocab_size, slots=slots, device=device, stop_token_ids=stop_token_ids, grammars=grammars
        )

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner."""
        self._sampler.bind(binding)
        if binding.last_token != NOT_SAMPLED:
            self._last[binding.slot] = binding.last_token

    def check(self, rows: Rows) -> None:
        """Raises ValueError for tokens that no model can feed."""
        ids = rows.input_ids
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise ValueError(f"input_ids reach from {ids.min()} to {ids.max()}, vocabulary is {self._vocab_size}")
        if (rows.input_lengths[rows.num_extends :] != 1).any():
            raise ValueError("a decode feeds more than one token; this model decodes one token at a time")

    def fed(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """The packed tokens to feed (int64 [tokens]), and which of them are sampled after (int64 [sampling rows])."""
        prompt_ids, decode_slots, keep = ship(
            [rows.input_ids, rows.slots[rows.num_extends :], np.cumsum(rows.input_lengths)[rows.samples] - 1],
            self._last.device,
        )
        return torch.cat([prompt_ids, self._last[decode_slots]]), keep

    def choose(self, rows: Rows, logits: torch.Tensor) -> Callable[[], Int32s]:
        """Sample from `logits` [sampling rows, vocabulary]; the result fetches the tokens once they have landed."""
        sampling = np.flatnonzero(rows.samples).astype(np.int32)
        if not len(sampling):
            return lambda: NO_TOKENS
        (slots,) = ship([rows.slots[sampling]], self._last.device)
        choice = self._sampler.choose(logits, slots=rows.slots[sampling], positions=rows.ends[sampling])
        self._last[slots] = choice.tokens
        if choice.read_logprobs is not None:
            rows.read_logprobs = partial(_of_rows, choice.read_logprobs, sampling)
        return choice.host.numpy


def _of_rows(read: Callable[[], RowLogprobs], sampling: Int32s) -> RowLogprobs:
    """The same log probabilities by row of the batch, where they were by row of those that sample."""
    told = read()
    return structs.replace(told, rows=pack(sampling[view(told.rows)]))
