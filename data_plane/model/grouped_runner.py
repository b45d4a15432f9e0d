"""A `ModelRunner` over a decoder whose layers live in several cache groups: full, sliding, replayable, state."""

from collections.abc import Callable
from pathlib import Path

import torch

from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.attention.geometry import KvGeometry
from data_plane.attention.kernels import LayerRule
from data_plane.attention.paged import PagedAttention
from data_plane.attention.round_plan import PackedTokens, RoundPlan
from data_plane.attention.ship import share
from data_plane.batch.replay import split_replay
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, GroupLayout, ModelFacts
from data_plane.model.grammars import Grammars
from data_plane.model.grouped import AttentionGroup, GroupedDecoder
from data_plane.model.next_tokens import NextTokens
from data_plane.recurrence.geometry import StateGeometry, state_geometry
from data_plane.recurrence.paged import PagedStates, Step
from data_plane.recurrence.round_plan import StatePlan


class GroupedRunner:
    """Runs `decoder` with one cache group for each of its attention groups, and one for all of its states.

    `state_granularity` is the span of a state block (a divisor of the prefix granularity); None: as the others'.
    With `tokenizer_path` outputs can be made to match a grammar.
    """

    def __init__(
        self,
        decoder: GroupedDecoder,
        *,
        name: str,
        block_granularity: int,
        state_granularity: int | None = None,
        tokenizer_path: Path | None = None,
    ) -> None:
        facts = decoder.facts
        self._decoder = decoder
        self._attention = tuple(_PagedGroup(group, block_granularity) for group in facts.attention)
        self._group_of = {layer: group for group in self._attention for layer in group.layers}
        layouts = [group.layout for group in self._attention]
        self._states = None
        if facts.states:
            largest = max(layout.block_bytes for layout in layouts)
            self._states = _PagedStateGroup(
                state_geometry(tuple(facts.states.values()), beside_bytes=largest),
                layers=tuple(facts.states),
                block_granularity=state_granularity or block_granularity,
            )
            layouts.append(self._states.layout)
        self._facts = ModelFacts(
            name=name,
            vocab_size=facts.vocab_size,
            max_context_tokens=facts.max_context_tokens,
            stop_token_ids=facts.stop_token_ids,
            groups=tuple(layouts),
            dtype=str(facts.dtype).removeprefix("torch."),
            weights_bytes=facts.weights_bytes,
            has_logits=True,
        )
        self._grammars = None
        if tokenizer_path is not None:
            self._grammars = Grammars(
                tokenizer_path, vocab_size=facts.vocab_size, stop_token_ids=self._facts.stop_token_ids
            )

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""
        return self._facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Once, before the first round: the arena and tables to use."""
        for index, group in enumerate(self._attention):
            group.attach(share(memory.blocks(index)), share(memory.table(index)))
        if self._states is not None:
            index = len(self._attention)
            self._states.attach(share(memory.blocks(index)), share(memory.table(index)))
        self._tokens = NextTokens(
            vocab_size=self._facts.vocab_size,
            slots=slots,
            device=self._decoder.device,
            stop_token_ids=self._facts.stop_token_ids,
            grammars=self._grammars,
        )

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner."""
        self._tokens.bind(binding)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Compute one batch. Raises ValueError for rows that this model cannot feed, before touching anything."""
        self._tokens.check(rows)
        with torch.inference_mode():
            replayed, computed = split_replay(rows)
            if replayed is not None:
                self._regenerate(replayed)
            fed = PackedTokens(computed, self._decoder.device)
            for group in self._attention:
                group.begin(fed)
            if self._states is not None:
                self._states.begin(computed)
            token_ids, keep = self._tokens.fed(computed)
            logits = self._decoder.logits(token_ids, fed.positions, keep, self)
            read = self._tokens.choose(computed, logits)
            rows.read_logprobs = computed.read_logprobs
            return read

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor:
        """A layer of the decoder asks for attention, within `run`."""
        return self._group_of[layer].attend(layer, query, key, value, rule)

    def recur(self, layer: int, inputs: torch.Tensor, step: Step) -> torch.Tensor:
        """A recurrent layer of the decoder asks for its rows' states, within `run`."""
        assert self._states is not None, f"layer {layer} has no states"
        return self._states.recur(layer, inputs, step)

    def _regenerate(self, rows: Rows) -> None:
        """Write the replayed tokens' rows of replayable groups. No other group hears of these tokens."""
        fed = PackedTokens(rows, self._decoder.device)
        for group in self._attention:
            if group.layout.replayable:
                group.begin(fed)
        token_ids, _ = self._tokens.fed(rows)
        for layer, key, value in self._decoder.window_rows(token_ids, fed.positions):
            self._group_of[layer].write(layer, key, value)


class _PagedGroup:
    """One attention group: its blocks, and the plan of the round that runs."""

    def __init__(self, group: AttentionGroup, block_granularity: int) -> None:
        self.layers = group.layers
        self._index = {layer: index for index, layer in enumerate(group.layers)}
        self._geometry = KvGeometry(
            layers=len(group.layers),
            kv_heads=group.kv_heads,
            head_dim=group.head_dim,
            block_granularity=block_granularity,
            dtype=group.dtype,
        )
        self.layout = GroupLayout(
            id=group.id,
            kind=group.kind,
            block_granularity=block_granularity,
            block_bytes=self._geometry.block_bytes,
            layers=group.layers,
            window=group.window,
            replayable=group.replayable,
        )

    def attach(self, blocks: torch.Tensor, table: torch.Tensor) -> None:
        self._table = table
        self._paged = PagedAttention(blocks, self._geometry)

    def begin(self, fed: PackedTokens) -> None:
        self._plan = RoundPlan(fed, self._table, self._geometry)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: LayerRule
    ) -> torch.Tensor:
        window = self.layout.window
        assert not window or 0 < rule.window <= window, f"layer {layer} sees {rule.window}, its group keeps {window}"
        return self._paged.attend(self._index[layer], query, key, value, rule=rule, plan=self._plan)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """The rows of tokens that nothing attends from."""
        self._paged.write(self._index[layer], key, value, self._plan)


class _PagedStateGroup:
    """The state group: its blocks, and the plan of the round that runs."""

    def __init__(self, geometry: StateGeometry, *, layers: tuple[int, ...], block_granularity: int) -> None:
        self._index = {layer: index for index, layer in enumerate(layers)}
        self._geometry = geometry
        self.layout = GroupLayout(
            id="state",
            kind="state",
            block_granularity=block_granularity,
            block_bytes=geometry.block_bytes,
            layers=layers,
        )

    def attach(self, blocks: torch.Tensor, table: torch.Tensor) -> None:
        self._table = table
        self._paged = PagedStates(blocks, self._geometry)

    def begin(self, rows: Rows) -> None:
        self._plan = StatePlan(rows, self._table, block_granularity=self.layout.block_granularity)

    def recur(self, layer: int, inputs: torch.Tensor, step: Step) -> torch.Tensor:
        return self._paged.recur(self._index[layer], inputs, step, self._plan)
