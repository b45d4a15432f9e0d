"""A whole sequence through a grouped decoder at once, without blocks, chunks or batches: what it should write."""

import torch

from data_plane.attention.kernels import LayerRule
from data_plane.model.grouped import GroupedDecoder
from data_plane.recurrence.paged import Step


class DenseCalls:
    """One sequence from its beginning: attention over all of it, states from nothing, one token after the other."""

    def __init__(self, decoder: GroupedDecoder) -> None:
        self._states = decoder.facts.states

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor:
        tokens, heads = query.shape[:2]
        key, value = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * rule.scale
        back = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
        seen = (back >= 0) & ((back < rule.window) if rule.window else (back >= 0))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, value)

    def recur(self, layer: int, inputs: torch.Tensor, step: Step) -> torch.Tensor:
        states = tuple(torch.zeros(1, *part.shape, dtype=part.dtype) for part in self._states[layer])
        outputs = []
        for token in inputs:
            output, states = step(token[None, None], states)
            outputs.append(output[0])
        return torch.cat(outputs)


@torch.inference_mode()
def greedy(decoder: GroupedDecoder, prompt: list[int], output: list[int]) -> list[int]:
    """The most likely token after `prompt` and after each token of `output` but the last.

    It equals `output` if and only if that is what the decoder writes greedily after `prompt`.
    """
    ids = torch.tensor(prompt + output[:-1])
    keep = torch.arange(len(prompt) - 1, len(ids))
    logits = decoder.logits(ids, torch.arange(len(ids)), keep, DenseCalls(decoder))
    return [int(token) for token in logits.argmax(dim=-1)]
