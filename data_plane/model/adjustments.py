"""What one request's own settings do to its logits before a token is chosen."""

import logging

import numpy as np
import torch

from control_plane.messages import SlotBinding
from control_plane.messages.columns import view
from data_plane.attention.ship import ship
from data_plane.model.grammars import Follower, Grammars
from data_plane.model.penalties import Penalties

log = logging.getLogger("tokenspeed.device")
FORBIDDEN = float("-inf")


def needs_adjustment(binding: SlotBinding) -> bool:
    """Whether a request's logits are changed at all: most are not, and cost nothing."""
    sampling = binding.sampling
    return bool(sampling.needs_history or sampling.logit_bias or (sampling.min_tokens and sampling.suppressed_ids))


class Adjustments:
    """Penalties, then biases, then tokens that may not come yet, then the grammar. All on the request's own row."""

    def __init__(
        self,
        binding: SlotBinding,
        *,
        vocab_size: int,
        stop_token_ids: tuple[int, ...],
        device: torch.device,
        grammars: Grammars | None,
    ) -> None:
        """Raises ValueError for a grammar where the model has no vocabulary for one."""
        sampling = binding.sampling
        self._device = device
        self._stop_token_ids = stop_token_ids
        self._penalties = Penalties(binding, vocab_size=vocab_size, device=device) if sampling.has_penalties else None
        self._bias_ids, self._bias = self._column([token for token, _ in sampling.logit_bias]), None
        if sampling.logit_bias:
            values = torch.tensor([bias for _, bias in sampling.logit_bias], dtype=torch.float32)
            self._bias = values.to(device)
        self._free_from = binding.prompt_tokens + sampling.min_tokens
        self._suppressed = self._column(list(sampling.suppressed_ids)) if sampling.min_tokens else None
        self._follower: Follower | None = None
        self._chosen: torch.Tensor | None = None
        self._row = 0
        if sampling.grammar:
            if grammars is None:
                raise ValueError("a grammar was asked of a model without a tokenizer")
            written = view(binding.history)[binding.prompt_tokens :].tolist()
            self._follower = grammars.follow(sampling.grammar, written)

    def apply(self, logits: torch.Tensor, *, position: int) -> torch.Tensor:
        """The adjusted copy of one row of logits, float32 [vocabulary], for the token at `position`."""
        if self._penalties is not None:
            logits = self._penalties.apply(logits)
        if self._bias is not None:
            logits = logits.index_add(0, self._bias_ids, self._bias)
        if self._suppressed is not None and position < self._free_from:
            logits = logits.index_fill(0, self._suppressed, FORBIDDEN)
        if self._follower is not None:
            logits = logits.masked_fill(~self._allowed(self._follower), FORBIDDEN)
        return logits

    def chose(self, tokens: torch.Tensor, row: int, host: torch.Tensor) -> None:
        """The request's token is `tokens[row]`, on the device, and `host[row]` once the round is done."""
        if self._penalties is not None:
            self._penalties.count(tokens[row : row + 1])
        self._chosen, self._row = host, row

    def _allowed(self, follower: Follower) -> torch.Tensor:
        """Steps with a grammar do not overlap, so that what the last one chose has landed by now."""
        if self._chosen is not None:
            follower.take(int(self._chosen[self._row]))
            self._chosen = None
        try:
            allowed = follower.allowed()
        except ValueError as error:
            # Nothing can follow: the output ends here, and only this one. The log says why.
            log.warning("an output ends before its grammar does: %s", error)
            allowed = None
        if allowed is None or not allowed.any():
            allowed = np.zeros(follower.vocab_size, dtype=np.bool_)
            allowed[list(self._stop_token_ids)] = True
        return torch.from_numpy(allowed).to(self._device, non_blocking=True)

    def _column(self, token_ids: list[int]) -> torch.Tensor:
        (column,) = ship([np.array(token_ids, dtype=np.int64)], self._device)
        return column
