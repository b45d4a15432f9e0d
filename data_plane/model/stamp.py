"""A model without tensors: it computes nothing and checks everything.

Each row that is fed is stamped into its block through the block tables. The next token is a hash of all the rows
that the group's attention may read, read back through the same tables. A stale, zeroed, wrongly shared or missing
block therefore changes the output, or raises StampFault. The tokens depend on a request's own tokens (and its seed)
alone, whatever the batch, the slots, the blocks or the chunks; `stamp_oracle.py` computes them without any of those.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from control_plane.errors import ConfigError
from control_plane.messages import SlotBinding
from control_plane.messages.columns import Int32s
from data_plane.batch.rows import Rows
from data_plane.model.base import DeviceMemory, GroupLayout, ModelFacts
from data_plane.model.stamp_group import Fed, StampFault, StampGroup
from data_plane.model.stamp_rows import ROW_BYTES, Chain
from data_plane.model.stamp_sampling import STOP_TOKEN, StampOptions, next_tokens, seed_word

__all__ = ["StampFault", "StampOptions", "StampRunner"]

UNSAMPLED = -1


class StampRunner:
    """Runs on the CPU, on whichever thread enqueues its work."""

    def __init__(self, options: StampOptions | None = None, *, block_granularity: int = 16) -> None:
        """`block_granularity` is that of the groups which name none. Raises ConfigError naming every problem."""
        self._options = options or StampOptions()
        layouts = _layouts(self._options, block_granularity)
        self._facts = ModelFacts(
            name="stamp",
            vocab_size=self._options.vocab_size,
            max_context_tokens=self._options.max_context_tokens,
            stop_token_ids=(STOP_TOKEN,),
            groups=layouts,
            dtype="stamp",
            weights_bytes=0,
        )
        self._groups: list[StampGroup] = []
        self._last_tokens: Int32s = np.zeros(0, dtype=np.int32)
        self._seeds: npt.NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)

    @property
    def facts(self) -> ModelFacts:
        """What the model is."""
        return self._facts

    def attach(self, memory: DeviceMemory, *, slots: int) -> None:
        """Take the memory to stamp."""
        reach = max(
            memory.table(index).shape[1] * layout.block_granularity for index, layout in enumerate(self._facts.groups)
        )
        chain = Chain(reach)
        self._groups = [
            StampGroup(index, layout, memory.blocks(index), memory.table(index), chain, strict=self._options.strict)
            for index, layout in enumerate(self._facts.groups)
        ]
        self._last_tokens = np.full(slots, UNSAMPLED, dtype=np.int32)
        self._seeds = np.zeros(slots, dtype=np.uint64)

    def bind(self, binding: SlotBinding) -> None:
        """A slot has a new owner, which sampled nothing yet."""
        self._last_tokens[binding.slot] = UNSAMPLED
        self._seeds[binding.slot] = seed_word(binding.sampling)

    def run(self, rows: Rows) -> Callable[[], Int32s]:
        """Stamp what is fed, read what may be read, and sample. All of it is done when this returns."""
        fed = self._fed(rows)
        for group in self._groups:
            group.write(fed)
        seen = [group.read(fed) for group in self._groups]
        tokens = next_tokens(seen, self._seeds[rows.slots], self._options)[rows.samples]
        self._last_tokens[rows.slots[rows.samples]] = tokens
        return lambda: tokens

    def _fed(self, rows: Rows) -> Fed:
        """The batch as runs of rows. A decode feeds what its slot sampled last."""
        if rows.decode_width != 1:
            raise StampFault(f"the stamp model decodes 1 token a step, not decode_width={rows.decode_width}")
        decode_slots = rows.slots[rows.num_extends :]
        feedback = self._last_tokens[decode_slots]
        missing = (feedback == UNSAMPLED) & ~rows.lost[rows.num_extends :]
        if missing.any():
            slot = int(decode_slots[missing][0])
            raise StampFault(f"slot {slot} decodes, but nothing was sampled for it since it was bound")
        tokens = np.concatenate([rows.input_ids, feedback]) if rows.num_extends else feedback
        expected = int(rows.input_lengths.sum())
        if len(tokens) != expected:
            raise StampFault(f"{len(tokens)} tokens are fed, but the rows' input lengths say {expected}")
        return Fed(
            slots=rows.slots, begins=rows.prefix_lengths, lengths=rows.input_lengths, tokens=tokens, lost=rows.lost
        )


def _layouts(options: StampOptions, block_granularity: int) -> tuple[GroupLayout, ...]:
    problems = []
    if options.vocab_size < 2:
        problems.append(f"vocab_size={options.vocab_size} must be at least 2: the stop token and another")
    if not 0.0 <= options.stop_probability <= 1.0:
        problems.append(f"stop_probability={options.stop_probability} must be between 0 and 1")
    counts: dict[str, Any] = {
        "group_kinds": options.group_kinds,
        "block_granularities": options.block_granularities,
        "packings": options.packings,
    }
    if not options.group_kinds or len({len(values) for values in counts.values()}) != 1:
        sizes = ", ".join(f"{name} has {len(values)}" for name, values in counts.items())
        problems.append(f"every group needs an entry in each of the three: {sizes}")
    for kind in options.group_kinds:
        if kind not in StampGroup.KINDS:
            problems.append(f"group kind {kind!r} is not one of {', '.join(StampGroup.KINDS)}")
    if problems:
        raise ConfigError(problems)
    layouts = []
    for index, kind in enumerate(options.group_kinds):
        granularity = options.block_granularities[index] or block_granularity
        name = kind if len(options.group_kinds) == 1 else f"{kind}-{index}"
        layouts.append(GroupLayout(name, kind, granularity, granularity * ROW_BYTES, options.packings[index], (index,)))
    return tuple(layouts)
