"""Drives a model runner by hand: block tables on numpy arrays, batches without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from control_plane.messages import ForwardBatch, Sampling, SlotBinding
from control_plane.messages.columns import pack
from data_plane.batch.rows import Rows
from data_plane.model.base import ModelRunner


class ArrayMemory:
    """The memory of one cache group as two numpy arrays."""

    def __init__(self, *, blocks: int, block_bytes: int, slots: int, columns: int) -> None:
        self.arena = np.zeros((blocks, block_bytes), dtype=np.uint8)
        self.tables = np.zeros((slots, columns), dtype=np.int32)

    def blocks(self, group: int) -> np.ndarray:
        assert group == 0
        return self.arena

    def table(self, group: int) -> np.ndarray:
        assert group == 0
        return self.tables


@dataclass
class Running:
    """A request in a slot: `computed` tokens are in its blocks, `known` are prompt and output.

    It decodes once the device sampled its last known token in this slot.
    """

    prompt_tokens: int
    known: list[int]
    sampling: Sampling
    computed: int = 0
    decoding: bool = False
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.known[self.prompt_tokens :]


class Driver:
    """One runner and its memory. Blocks are handed out in an order that `seed` shuffles."""

    def __init__(self, runner: ModelRunner, *, slots: int = 8, blocks: int = 256, seed: int = 0) -> None:
        (group,) = runner.facts.groups
        self.granularity = group.block_granularity
        self.memory = ArrayMemory(blocks=blocks, block_bytes=group.block_bytes, slots=slots, columns=blocks)
        self.runner = runner
        self.requests: dict[int, Running] = {}
        self._rng = np.random.default_rng(seed)
        self._free = [int(block) for block in self._rng.permutation(np.arange(1, blocks))]
        self._slots = [int(slot) for slot in self._rng.permutation(slots)]
        runner.attach(self.memory, slots=slots)

    def start(self, known: Sequence[int], *, sampling: Sampling = Sampling(), prompt_tokens: int | None = None) -> int:
        """Bind a slot to a request that knows these tokens; `prompt_tokens` is less than all after a retraction."""
        slot = self._slots.pop()
        prompt = len(known) if prompt_tokens is None else prompt_tokens
        self.requests[slot] = Running(prompt, list(known), sampling)
        history = pack(list(known)) if sampling.needs_history else b""
        self.runner.bind(SlotBinding(slot, slot + 1, prompt, history, sampling))
        return slot

    def share(self, slot: int, *, owner: int, tokens: int) -> None:
        """Let a fresh slot read the first `tokens` (whole blocks) that `owner` computed."""
        assert tokens % self.granularity == 0
        assert tokens <= self.requests[owner].computed
        request = self.requests[slot]
        request.blocks = self.requests[owner].blocks[: tokens // self.granularity]
        request.computed = tokens
        self.memory.tables[slot, : len(request.blocks)] = request.blocks

    def drop(self, slot: int) -> list[int]:
        """Give a slot back, its blocks unless they are shared, and return what was known."""
        request = self.requests.pop(slot)
        held = {block for other in self.requests.values() for block in other.blocks}
        self._free.extend(block for block in request.blocks if block not in held)
        self.memory.tables[slot] = 0
        self._slots.append(slot)
        return request.known

    def run(self, rows: dict[int, int]) -> None:
        """One round: `rows` says how many tokens each slot feeds."""
        extends = [slot for slot in rows if not self.requests[slot].decoding]
        decodes = [slot for slot in rows if self.requests[slot].decoding]
        ordered = extends + decodes
        lengths = [rows[slot] for slot in ordered]
        prefixes = [self.requests[slot].computed for slot in ordered]
        for slot, prefix, length in zip(ordered, prefixes, lengths, strict=True):
            self.cover(slot, prefix + length)
        known = [self.requests[slot].known for slot in extends]
        fed = [tokens[prefix : prefix + n] for tokens, prefix, n in zip(known, prefixes, lengths, strict=False)]
        batch = ForwardBatch(
            keys=pack([slot + 1 for slot in ordered]),
            slots=pack(ordered),
            num_extends=len(extends),
            input_lengths=pack(lengths),
            prefix_lengths=pack(prefixes),
            prefill_lengths=pack([len(tokens) for tokens in known]),
            replay_lengths=pack([0] * len(extends)),
            checkpoints=pack([0] * len(extends)),
            input_ids=pack([token for tokens in fed for token in tokens]),
            decode_width=1,
        )
        view = Rows(batch)
        tokens = iter(self.runner.run(view)().tolist())
        for slot, length, samples in zip(ordered, lengths, view.samples, strict=True):
            request = self.requests[slot]
            request.computed += length
            if samples:
                request.known.append(next(tokens))
                request.decoding = True
        assert next(tokens, None) is None, "more tokens than sampling rows"

    def finish(self, *, new_tokens: int, budget_tokens: int, most_chunk: int) -> dict[int, list[int]]:
        """Run all slots in random chunks and mixtures until each wrote `new_tokens`; returns slot -> output."""
        while waiting := [slot for slot, request in self.requests.items() if len(request.output) < new_tokens]:
            rows: dict[int, int] = {}
            left = budget_tokens
            for slot in self._rng.permutation(waiting).tolist():
                request = self.requests[slot]
                missing = len(request.known) - request.computed
                chunk = min(left, missing, int(self._rng.integers(1, most_chunk + 1)))
                if chunk and self._rng.random() < 0.8:
                    rows[slot] = chunk
                    left -= chunk
            if rows:
                self.run(rows)
        return {slot: request.output for slot, request in self.requests.items()}

    def cover(self, slot: int, tokens: int) -> None:
        """Give the slot clean blocks for its first `tokens` positions."""
        request = self.requests[slot]
        while len(request.blocks) * self.granularity < tokens:
            block = self._free.pop()
            self.memory.arena[block] = 0
            self.memory.tables[slot, len(request.blocks)] = block
            request.blocks.append(block)
