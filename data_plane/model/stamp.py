"""A model without tensors: it computes nothing and checks everything.

Each row that is fed is stamped into its block through the block tables. The next token is a hash of all the rows
that each group's attention may read, read back through the same tables. A stale, zeroed, wrongly shared or missing
block therefore changes the output, or raises StampFault. The tokens depend on a request's own tokens (and its seed)
alone, whatever the batch, the slots, the blocks or the chunks; `stamp_oracle.py` computes them without any of those.

What a group keeps is in `stamp_history.py` (full, sliding and replayable groups) and `stamp_state.py`.
"""

from collections.abc import Callable

import numpy as np

from control_plane.messages import NOT_SAMPLED, SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, ModelFacts
from data_plane.model.stamp_batch import Bools, Fed
from data_plane.model.stamp_group import StampFault, StampGroup
from data_plane.model.stamp_history import HistoryGroup
from data_plane.model.stamp_options import STOP_TOKEN, StampOptions, group_layouts
from data_plane.model.stamp_rows import Chain, Words
from data_plane.model.stamp_sampling import next_tokens, seed_word
from data_plane.model.stamp_state import StateGroup

__all__ = ["StampFault", "StampOptions", "StampRunner"]

OF_LOST_ROWS = STOP_TOKEN + 1  # nobody takes it


class StampRunner:
    """Runs on the CPU, on whichever thread enqueues its work."""

    def __init__(self, options: StampOptions | None = None, *, block_granularity: int = 16) -> None:
        """`block_granularity` is that of the groups which name none. Raises ConfigError naming every problem."""
        self._options = options or StampOptions()
        self._facts = ModelFacts(
            name="stamp",
            vocab_size=self._options.vocab_size,
            max_context_tokens=self._options.max_context_tokens,
            stop_token_ids=(STOP_TOKEN,),
            groups=group_layouts(self._options, block_granularity),
            dtype="stamp",
            weights_bytes=0,
        )
        self._groups: list[StampGroup] = []
        self._last_tokens: Int32s = np.zeros(0, dtype=np.int32)
        self._seeds: Words = np.zeros(0, dtype=np.uint64)

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""
        return self._facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Take the memory to stamp."""
        layouts = self._facts.groups
        tables = [memory.table(index) for index in range(len(layouts))]
        chain = Chain(
            max(table.shape[1] * layout.block_granularity for table, layout in zip(tables, layouts, strict=True))
        )
        self._groups = [
            (StateGroup if layout.kind == "state" else HistoryGroup)(
                index, layout, memory.blocks(index), tables[index], chain, strict=self._options.strict
            )
            for index, layout in enumerate(layouts)
        ]
        self._last_tokens = np.full(slots, NOT_SAMPLED, dtype=np.int32)
        self._seeds = np.zeros(slots, dtype=np.uint64)

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner, which wrote nothing yet, or goes on from what a peer wrote and sampled."""
        self._last_tokens[binding.slot] = binding.last_token
        self._seeds[binding.slot] = seed_word(binding.sampling)
        for group in self._groups:
            group.bind(binding.slot)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Stamp what is fed, read what may be read, and sample. All of it is done when this returns."""
        tokens = np.full(rows.count, OF_LOST_ROWS, dtype=np.int32)
        live = ~rows.lost
        if live.any():
            tokens[live] = self._next_tokens(rows, live)
        sampled = tokens[rows.samples]
        self._last_tokens[rows.slots[rows.samples]] = sampled
        return lambda: sampled

    def _next_tokens(self, rows: Rows, live: Bools) -> Int32s:
        """The token after each `live` row. The others are left out: what they would read may be anything."""
        fed, replay = self._fed(rows), self._replay(rows)
        if not live.all():
            fed, replay = fed.only(live), replay[live]
        computed = fed.without_first(replay) if replay.any() else fed
        for group in self._groups:
            # Rows that are fed again stand in blocks that others share, except where they are regenerated.
            group.write(fed if group.replayable else computed)
        seen = [group.read(computed) for group in self._groups]
        return next_tokens(seen, self._seeds[computed.slots], self._options)

    def _fed(self, rows: Rows) -> Fed:
        """The batch as runs of rows. A decode feeds what its slot sampled last."""
        if rows.decode_width != 1:
            raise StampFault(f"the stamp model decodes 1 token a step, not decode_width={rows.decode_width}")
        decode_slots = rows.slots[rows.num_extends :]
        feedback = self._last_tokens[decode_slots]
        missing = (feedback == NOT_SAMPLED) & ~rows.lost[rows.num_extends :]
        if missing.any():
            slot = int(decode_slots[missing][0])
            raise StampFault(f"slot {slot} decodes, but nothing was sampled for it since it was bound")
        tokens = np.concatenate([rows.input_ids, feedback]) if rows.num_extends else feedback
        expected = int(rows.input_lengths.sum())
        if len(tokens) != expected:
            raise StampFault(f"{len(tokens)} tokens are fed, but the rows' input lengths say {expected}")
        return Fed(
            slots=rows.slots,
            begins=rows.prefix_lengths,
            lengths=rows.input_lengths,
            tokens=tokens,
            checkpoints=_of_every_row(rows, rows.checkpoints),
        )

    def _replay(self, rows: Rows) -> Int32s:
        """How many of each row's first tokens are fed for the replayable groups alone."""
        replay = _of_every_row(rows, rows.replay_lengths)
        if replay.any():
            wrong = (replay < 0) | (replay >= rows.input_lengths)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise StampFault(f"slot {rows.slots[at]}: {replay[at]} of {rows.input_lengths[at]} tokens are replayed")
            if not any(group.replayable for group in self._groups):
                slot = int(rows.slots[np.argmax(replay)])
                raise StampFault(f"slot {slot} replays {int(replay.max())} tokens, but no group is replayable")
        return replay


def _of_every_row(rows: Rows, of_extends: Int32s) -> Int32s:
    """A column of the extends with zeros for the decodes."""
    column = np.zeros(rows.count, dtype=np.int32)
    column[: rows.num_extends] = of_extends
    return column
