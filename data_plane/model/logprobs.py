"""Log probabilities of the distribution that a token was drawn from, for the rows that ask."""

from collections.abc import Callable

import numpy as np
import torch
from msgspec import Struct

from control_plane.messages.columns import Int32s, pack
from control_plane.messages.logprobs import FLOAT32
from data_plane.batch.rows import RowLogprobs


class Asked(Struct, frozen=True):
    """The rows that ask; `widths` says for each how many of the likeliest tokens.

    `columns` are temperature, top-k, top-p and min-p, float64 [4, rows, 1] on the device. A temperature of 1 and
    filters that are off describe a greedy row: its distribution is the model's own.
    """

    rows: Int32s
    widths: Int32s
    columns: torch.Tensor
    is_filtered: bool


def distribution(logits: torch.Tensor, asked: Asked) -> torch.Tensor:
    """Log probabilities [rows, vocabulary] after temperature and filters; -inf for what they leave out."""
    temperature, top_k, top_p, min_p = asked.columns.unbind()
    scores = (logits / temperature.to(torch.float32)).log_softmax(dim=-1)
    if not asked.is_filtered:
        return scores
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    probabilities = values.exp().double()
    rank = torch.arange(scores.shape[-1], device=scores.device)
    within_k = torch.where(rank < top_k, probabilities, 0.0)
    mass = within_k.cumsum(dim=-1)
    everything = torch.where(top_k < scores.shape[-1], mass[:, -1:], 1.0)
    kept = (mass - within_k < top_p * everything) & (within_k > 0)
    kept &= probabilities >= min_p * probabilities[:, :1]
    kept[:, 0] = True
    scores = scores.masked_fill(~torch.zeros_like(kept).scatter(1, order, kept), float("-inf"))
    return scores - scores.logsumexp(dim=-1, keepdim=True)


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor, asked: Asked) -> Callable[[], RowLogprobs]:
    """Score `tokens` int64 [rows] under `logits` [rows, vocabulary], both of the asking rows alone.

    Enqueues the work; the result gives the columns once it is done.
    """
    scores = distribution(logits, asked)
    own = scores.gather(1, tokens[:, None])
    width = int(asked.widths.max())
    top = scores.topk(min(width, scores.shape[-1]), dim=-1)
    values = _landing(torch.cat([own, top.values], dim=-1))
    ids = _landing(torch.cat([tokens[:, None], top.indices], dim=-1).to(torch.int32))

    def read() -> RowLogprobs:
        counts = asked.widths + 1
        keep = np.arange(ids.shape[1]) < counts[:, None]
        return RowLogprobs(
            rows=pack(asked.rows),
            counts=pack(counts),
            tokens=pack(ids.numpy()[keep]),
            values=values.numpy()[keep].astype(FLOAT32).tobytes(),
        )

    return read


def _landing(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host that is complete when the round is."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    host.copy_(tensor, non_blocking=True)
    return host
