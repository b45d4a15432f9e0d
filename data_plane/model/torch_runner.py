"""A `ModelRunner` over a transformers decoder: packed rows, paged attention, sampling."""

from collections.abc import Callable

import numpy as np
import torch

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.attention.geometry import KvGeometry
from data_plane.attention.kernels import LayerRule
from data_plane.attention.paged import PagedAttention
from data_plane.attention.round_plan import RoundPlan
from data_plane.attention.ship import share, ship
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, GroupLayout, ModelFacts
from data_plane.model.hf import HookedDecoder
from data_plane.model.sampler import Sampler

NO_TOKENS: Int32s = np.empty(0, dtype=np.int32)


class TorchRunner:
    """Runs `decoder` with one full-history group that holds all of its layers.

    A sliding layer's blocks are kept as long as a full one's; its window is applied when it reads. The token that a
    slot sampled last stays on the device, so a decode needs nothing from the host but lengths.
    """

    def __init__(self, decoder: HookedDecoder, *, name: str, block_granularity: int) -> None:
        self._decoder = decoder
        first = decoder.layers[0]
        self._geometry = KvGeometry(
            layers=len(decoder.layers),
            kv_heads=first.kv_heads,
            head_dim=first.key_dim,
            block_granularity=block_granularity,
            dtype=first.dtype,
        )
        self._facts = _facts(decoder, self._geometry, name)

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""
        return self._facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Once, before the first round: the arena and tables to use."""
        device = self._decoder.device
        self._attention = PagedAttention(share(memory.blocks(0)), self._geometry)
        self._table = share(memory.table(0))
        self._last_token = torch.zeros(slots, dtype=torch.int64, device=device)
        self._sampler = Sampler(vocab_size=self._facts.vocab_size, slots=slots, device=device)

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner."""
        self._sampler.bind(binding)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Compute one batch. Raises ValueError for rows that this model cannot feed, before touching anything."""
        self._check(rows)
        with torch.inference_mode():
            return self._run(rows)

    def _run(self, rows: Rows) -> Callable[[], Int32s]:
        plan = RoundPlan(rows, self._table, self._geometry)

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
        ) -> torch.Tensor:
            return self._attention.attend(layer, query, key, value, rule=rule, plan=plan)

        sampling = np.flatnonzero(rows.samples)
        prompt_ids, decode_slots, last_fed, slots = ship(
            [rows.input_ids, rows.slots[rows.num_extends :], plan.starts[1:][sampling] - 1, rows.slots[sampling]],
            self._decoder.device,
        )
        token_ids = torch.cat([prompt_ids, self._last_token[decode_slots]])
        logits = self._decoder.logits(token_ids, plan.positions, last_fed, attend)
        if not len(sampling):
            return lambda: NO_TOKENS
        tokens = self._sampler.sample(logits, slots=rows.slots[sampling], positions=rows.ends[sampling])
        self._last_token[slots] = tokens
        return _fetch(tokens)

    def _check(self, rows: Rows) -> None:
        ids = rows.input_ids
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._facts.vocab_size:
            raise ValueError(f"input_ids reach from {ids.min()} to {ids.max()}, vocabulary is {self._facts.vocab_size}")
        if (rows.input_lengths[rows.num_extends :] != 1).any():
            raise ValueError("a decode feeds more than one token; this model decodes one token at a time")


def _fetch(tokens: torch.Tensor) -> Callable[[], Int32s]:
    """Start copying sampled tokens to the host; the result reads them once the copy has landed."""
    host = torch.empty(len(tokens), dtype=torch.int32, pin_memory=tokens.is_cuda)
    host.copy_(tokens, non_blocking=True)
    return host.numpy


def _facts(decoder: HookedDecoder, geometry: KvGeometry, name: str) -> ModelFacts:
    group = GroupLayout(
        id="full",
        kind="full",
        block_granularity=geometry.block_granularity,
        block_bytes=geometry.block_bytes,
        layers=tuple(range(geometry.layers)),
    )
    return ModelFacts(
        name=name,
        vocab_size=int(decoder.config.vocab_size),
        max_context_tokens=int(decoder.config.max_position_embeddings),
        stop_token_ids=_stop_token_ids(decoder),
        groups=(group,),
        dtype=str(geometry.dtype).removeprefix("torch."),
        weights_bytes=decoder.weights_bytes,
    )


def _stop_token_ids(decoder: HookedDecoder) -> tuple[int, ...]:
    """The end-of-sequence tokens of the generation configuration, else of the model's."""
    generation = getattr(decoder.model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(decoder.config, "eos_token_id", None)
    if found is None:
        return ()
    return tuple(int(token) for token in (found if isinstance(found, (list, tuple)) else [found]))
