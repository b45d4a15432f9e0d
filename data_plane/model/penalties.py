"""Penalties on tokens that a request has already seen or written."""

import torch

from control_plane.messages import SlotBinding
from control_plane.messages.columns import view
from data_plane.attention.ship import ship


class Penalties:
    """The token counts of one request that asked for penalties.

    Repetition concerns prompt and output, presence and frequency the output only, as in the OpenAI API and in
    Keskar et al. 2019. All arithmetic is on the request's own row.
    """

    def __init__(self, binding: SlotBinding, *, vocab_size: int, device: torch.device) -> None:
        sampling = binding.sampling
        self._repetition = sampling.repetition_penalty
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        (history,) = ship([view(binding.history)], device)
        prompt, output = history[: binding.prompt_tokens], history[binding.prompt_tokens :]
        self._in_prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._in_prompt.index_fill_(0, prompt, True)
        self._output_counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._output_counts.index_add_(0, output, torch.ones_like(output, dtype=torch.float32))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The penalised copy of one row of logits, float32 [vocabulary]."""
        written = self._output_counts > 0
        repeated = torch.where(logits > 0, logits / self._repetition, logits * self._repetition)
        logits = torch.where(self._in_prompt | written, repeated, logits)
        return logits - self._frequency * self._output_counts - self._presence * written

    def count(self, token: torch.Tensor) -> None:
        """The request wrote `token` (int64 [1], on the device)."""
        self._output_counts.index_add_(0, token, torch.ones_like(token, dtype=torch.float32))
