"""Drives a runner with several cache groups by hand: one arena, tables with holes, checkpoints, replay.

Every round is checked from outside the model too: blocks that requests share and the null block keep their bytes.
Blocks that nobody holds are filled with NaN, which no answer survives.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from control_plane.messages import ForwardBatch, Sampling, SlotBinding
from control_plane.messages.columns import pack
from data_plane.batch.rows import Rows
from data_plane.memory.arena import Arena
from data_plane.memory.layout import plan_layout
from data_plane.model.base import GroupLayout, ModelRunner


@dataclass
class Running:
    """A request in a slot: `computed` tokens are behind it; `held` maps columns to blocks, for each group.

    It decodes once the device sampled its last known token in this slot.
    """

    known: list[int]
    prompt_tokens: int
    held: list[dict[int, int]]
    computed: int = 0
    replay: int = 0
    decoding: bool = False
    checkpoints: set[int] = field(default_factory=set)

    @property
    def output(self) -> list[int]:
        return self.known[self.prompt_tokens :]


class GroupDriver:
    """One runner, and memory for `parents` parents. `prefix_granularity` is where prefixes may be shared."""

    def __init__(
        self, runner: ModelRunner, *, prefix_granularity: int, parents: int = 400, slots: int = 8, seed: int = 0
    ) -> None:
        layout = plan_layout(runner.facts.groups)
        self.runner, self.groups, self.pages = runner, layout.groups, prefix_granularity
        self.arena = Arena(layout, device_blocks=parents, device="cpu")
        self.tables = [np.zeros((slots, 400), dtype=np.int32) for _ in self.groups]
        self.requests: dict[int, Running] = {}
        self.most_held = [0] * len(self.groups)
        self._rng = np.random.default_rng(seed)
        self._parents = [int(parent) for parent in self._rng.permutation(np.arange(1, parents + 1))]
        self._free: list[list[int]] = [[] for _ in self.groups]
        self._users: list[Counter[int]] = [Counter() for _ in self.groups]
        self._slots = [int(slot) for slot in self._rng.permutation(slots)]
        runner.attach(self, slots=slots)

    def blocks(self, group: int) -> np.ndarray:
        return self.arena.blocks(self.groups[group])

    def table(self, group: int) -> np.ndarray:
        return self.tables[group]

    def start(self, known: Sequence[int], *, sampling: Sampling = Sampling(), prompt_tokens: int | None = None) -> int:
        """Bind a slot to a request that knows these tokens; `prompt_tokens` is less than all after a retraction."""
        slot = self._slots.pop()
        prompt = len(known) if prompt_tokens is None else prompt_tokens
        self.requests[slot] = Running(list(known), prompt, [{} for _ in self.groups])
        history = pack(list(known)) if sampling.needs_history else b""
        self.runner.bind(SlotBinding(slot, slot + 1, prompt, history, sampling))
        return slot

    def share(self, slot: int, *, owner: int, tokens: int) -> None:
        """Let a fresh slot begin after `tokens` that `owner` computed, as a prefix hit does."""
        assert tokens % self.pages == 0
        request, other = self.requests[slot], self.requests[owner]
        for index, group in enumerate(self.groups):
            if group.replayable:
                request.replay = min(group.window, tokens)
                continue
            for column in _seen_after(group, tokens):
                self._hold(request, index, column, other.held[index][column])
            self._tell(slot, index)
        request.computed = tokens

    def drop(self, slot: int) -> list[int]:
        """Give a slot back; returns what was known."""
        request = self.requests.pop(slot)
        for index in range(len(self.groups)):
            self._keep(request, index, set())
            self.tables[index][slot] = 0
        self._slots.append(slot)
        return request.known

    def run(self, rows: dict[int, int], checkpoints: dict[int, int] | None = None) -> None:
        """One round: so many new tokens of each slot, and a checkpoint inside some of them."""
        extends = [slot for slot in rows if not self.requests[slot].decoding]
        ordered = extends + [slot for slot in rows if self.requests[slot].decoding]
        kept = {slot: (checkpoints or {}).get(slot, 0) for slot in extends}
        replays = {slot: self.requests[slot].replay for slot in ordered}
        prefixes = {slot: self.requests[slot].computed - replays[slot] for slot in ordered}
        for slot in ordered:
            self.admit(slot, rows[slot], kept.get(slot, 0))
        fed = [self.requests[slot].known[prefixes[slot] :][: rows[slot] + replays[slot]] for slot in extends]
        batch = ForwardBatch(
            keys=pack([slot + 1 for slot in ordered]),
            slots=pack(ordered),
            num_extends=len(extends),
            input_lengths=pack([rows[slot] + replays[slot] for slot in ordered]),
            prefix_lengths=pack([prefixes[slot] for slot in ordered]),
            prefill_lengths=pack([len(self.requests[slot].known) for slot in extends]),
            replay_lengths=pack([replays[slot] for slot in extends]),
            checkpoints=pack([kept[slot] for slot in extends]),
            input_ids=pack([token for tokens in fed for token in tokens]),
            decode_width=1,
        )
        shared = [[block for block, users in counter.items() if users > 1] for counter in self._users]
        before = [self.blocks(index)[chosen].tobytes() for index, chosen in enumerate(shared)]
        view = Rows(batch)
        tokens = iter(self.runner.run(view)().tolist())
        for slot, samples in zip(ordered, view.samples, strict=True):
            request = self.requests[slot]
            request.computed += rows[slot]
            request.replay = 0
            if samples:
                request.known.append(next(tokens))
                request.decoding = True
        assert next(tokens, None) is None, "more tokens than sampling rows"
        after = [self.blocks(index)[chosen].tobytes() for index, chosen in enumerate(shared)]
        assert before == after, "a shared block was written"
        assert not self.blocks(0)[0].any(), "the null block was written"

    def finish(self, *, new_tokens: int, budget_tokens: int, most_chunk: int) -> dict[int, list[int]]:
        """Run all slots in random chunks, mixtures and checkpoints until each wrote `new_tokens`; slot -> output."""
        while waiting := [slot for slot, request in self.requests.items() if len(request.output) < new_tokens]:
            rows: dict[int, int] = {}
            checkpoints: dict[int, int] = {}
            left = budget_tokens
            for slot in self._rng.permutation(waiting).tolist():
                request = self.requests[slot]
                chunk = min(left, len(request.known) - request.computed, int(self._rng.integers(1, most_chunk + 1)))
                if chunk and self._rng.random() < 0.8:
                    rows[slot] = chunk
                    left -= chunk
                    last = (request.computed + chunk - 1) // self.pages * self.pages
                    if last > request.computed and self._rng.random() < 0.7:
                        checkpoints[slot] = last
            if rows:
                self.run(rows, checkpoints)
        return {slot: request.output[:new_tokens] for slot, request in self.requests.items()}

    def admit(self, slot: int, count: int, checkpoint: int = 0) -> None:
        """Blocks for what a row of `count` new tokens writes, and holes where nothing is read any more."""
        request = self.requests[slot]
        begin, end = request.computed, request.computed + count
        if any(group.kind == "state" for group in self.groups):
            request.checkpoints |= {at for at in (checkpoint, end) if at and at % self.pages == 0}
        for index, group in enumerate(self.groups):
            g = group.block_granularity
            if group.kind == "state":
                wanted = {(at - 1) // g for at in (end, checkpoint) if at}
            else:
                first = max(0, begin - request.replay * group.replayable)
                wanted = set(range(first // g, (end - 1) // g + 1))
            kept = wanted.union(*(_seen_after(group, at) for at in (begin, *request.checkpoints)))
            self._keep(request, index, kept)
            for column in sorted(wanted - set(request.held[index])):
                self._hold(request, index, column, self._take(index))
            self._tell(slot, index)
            self.most_held[index] = max(self.most_held[index], len(request.held[index]))

    def _tell(self, slot: int, index: int) -> None:
        self.tables[index][slot] = 0
        for column, block in self.requests[slot].held[index].items():
            self.tables[index][slot, column] = block

    def _hold(self, request: Running, index: int, column: int, block: int) -> None:
        request.held[index][column] = block
        self._users[index][block] += 1

    def _keep(self, request: Running, index: int, columns: set[int]) -> None:
        for column in set(request.held[index]) - columns:
            block = request.held[index].pop(column)
            self._users[index][block] -= 1
            if not self._users[index][block]:
                self.blocks(index)[block] = 0xFF
                self._free[index].append(block)

    def _take(self, index: int) -> int:
        if not self._free[index]:
            packing = self.groups[index].packing
            first = self._parents.pop() * packing
            self._free[index] = list(range(first, first + packing))
        block = self._free[index].pop()
        self.blocks(index)[block] = 0
        return block


def _seen_after(group: GroupLayout, tokens: int) -> range:
    """The columns that are read by the token after so many, its own apart."""
    end = -(-tokens // group.block_granularity)
    if group.kind == "state":
        return range(max(0, end - 1), end)
    return range(max(0, tokens - group.window + 1) // group.block_granularity if group.window else 0, end)


def group_of(runner: ModelRunner, kind: str) -> GroupLayout:
    """The runner's group of this kind."""
    (found,) = [group for group in runner.facts.groups if group.kind == kind]
    return found
