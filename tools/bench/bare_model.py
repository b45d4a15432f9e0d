"""The floor beneath serving: `transformers` alone, one batch, no server, no scheduler, its own dense cache."""

import time
from collections.abc import Sequence
from typing import cast

import torch
from transformers import AutoModelForCausalLM, Cache, DynamicCache, StaticCache

from data_plane.model.sources import resolve


class BareModel:
    """A model's own forward in float32, greedy, with the threads that torch takes by itself."""

    def __init__(self, name: str) -> None:
        folder = resolve(name, print).folder
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        self._model = model.eval()  # type: ignore[no-untyped-call]

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> tuple[float, float]:
        """Seconds to prefill prompts of one length as one batch, and seconds of the `new_tokens - 1` steps after.

        Both are the best of two runs, one with each cache: a dynamic one copies every key and value in every step, a
        static one attends over its whole length, and which is faster depends on the machine and the lengths.
        """
        config = self._model.config
        length = len(prompts[0]) + new_tokens
        runs = [
            self._run(prompts, new_tokens, cache)
            for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=length))
        ]
        return min(prefill_s for prefill_s, _ in runs), min(decode_s for _, decode_s in runs)

    def _run(self, prompts: Sequence[Sequence[int]], new_tokens: int, cache: Cache) -> tuple[float, float]:
        begin = time.perf_counter()
        sampled = self._next(torch.tensor(prompts), cache)
        prefilled = time.perf_counter()
        for _ in range(new_tokens - 1):
            sampled = self._next(sampled, cache)
        return prefilled - begin, time.perf_counter() - prefilled

    def _next(self, token_ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        """The likeliest next token of each row of [rows, tokens], as [rows, 1]."""
        logits = self._model(token_ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        return cast(torch.Tensor, logits[:, -1:].argmax(-1))
