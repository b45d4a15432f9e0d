"""Plans without a scheduler: the simplest planner that could work, for driving a device alone."""

import random
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from control_plane.messages import BlockList, ExecutionPlan, ForwardBatch, Sampling, SlotBinding, TableEdit
from control_plane.messages.columns import pack
from data_plane.model.base import GroupLayout


class _Planned:
    """What the writer knows of one request: its blocks a group, and how many tokens it computed."""

    def __init__(self, slot: int, prompt: Sequence[int], group_count: int, binding: SlotBinding) -> None:
        self.slot = slot
        self.prompt = list(prompt)
        self.computed = 0
        self.blocks: list[list[int]] = [[] for _ in range(group_count)]
        self.told = [0] * group_count
        self.binding: SlotBinding | None = binding


class PlanWriter:
    """Gives slots and blocks to requests, takes them back, and writes rounds as plans.

    Blocks are taken from the lowest free parent up, or in the order that `shuffle_seed` gives. Nothing is evicted:
    running out of slots or blocks is an IndexError.
    """

    def __init__(
        self, groups: Sequence[GroupLayout], *, device_blocks: int, slots: int, shuffle_seed: int | None = None
    ) -> None:
        self._groups = tuple(groups)
        self._free_parents = list(range(device_blocks, 0, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self._free_parents)
            random.Random(shuffle_seed).shuffle(self._free_slots)
        self._free_blocks: list[list[int]] = [[] for _ in groups]
        self._users: list[dict[int, int]] = [{} for _ in groups]
        self._requests: dict[int, _Planned] = {}
        self._releases: list[TableEdit] = []
        self._round = 0

    def add(
        self, key: int, prompt: Sequence[int], *, sampling: Sampling | None = None, shares: tuple[int, int] = (0, 0)
    ) -> int:
        """A new request takes a slot, which is returned.

        `shares` names an earlier request and how many of its first tokens need not be computed again: whole blocks of
        every group, which the two then share.
        """
        sampling = sampling or Sampling()
        history = pack(prompt) if sampling.needs_history else b""
        slot = self._free_slots.pop()
        request = _Planned(slot, prompt, len(self._groups), SlotBinding(slot, key, len(prompt), history, sampling))
        other, tokens = shares
        if tokens:
            request.computed = tokens
            for index, group in enumerate(self._groups):
                assert tokens % group.block_granularity == 0, f"{tokens} tokens are no whole blocks"
                shared = self._requests[other].blocks[index][: tokens // group.block_granularity]
                request.blocks[index] = list(shared)
                for block in shared:
                    self._users[index][block] += 1
        self._requests[key] = request
        return slot

    def release(self, key: int) -> None:
        """The request is over: its slot and blocks can be taken again, in the next plan."""
        request = self._requests.pop(key)
        for index, blocks in enumerate(request.blocks):
            self._releases.append(TableEdit(request.slot, index, 0, b""))
            for block in blocks:
                self._users[index][block] -= 1
                if not self._users[index][block]:
                    self._free_blocks[index].append(block)
        self._free_slots.append(request.slot)

    def blocks(self, key: int, group: int = 0) -> list[int]:
        """The blocks that a request holds."""
        return list(self._requests[key].blocks[group])

    def plan(self, extends: Mapping[int, int] | None = None, decodes: Collection[int] = ()) -> ExecutionPlan:
        """One round: so many prompt tokens of each request in `extends`, and one step of each in `decodes`."""
        self._round += 1
        lengths = dict(extends or {})
        keys = [*lengths, *decodes]
        requests = [self._requests[key] for key in keys]
        prefixes = [request.computed for request in requests]
        inputs = [lengths.get(key, 1) for key in keys]
        input_ids: list[int] = []
        zero: list[list[int]] = [[] for _ in self._groups]
        edits, self._releases = self._releases, []
        bindings = []
        for request, count in zip(requests, inputs, strict=True):
            input_ids += request.prompt[request.computed : request.computed + count]
            request.computed += count
            edits += self._grow(request, zero)
            if request.binding is not None:
                bindings.append(request.binding)
                request.binding = None
        forward = None
        if keys:
            extend_count = len(lengths)
            prefills = [len(request.prompt) for request in requests[:extend_count]]
            unused = pack(np.zeros(extend_count, dtype=np.int32))
            forward = ForwardBatch(
                keys=pack(keys),
                slots=pack([request.slot for request in requests]),
                num_extends=extend_count,
                input_lengths=pack(inputs),
                prefix_lengths=pack(prefixes),
                prefill_lengths=pack(prefills),
                replay_lengths=unused,
                checkpoints=unused,
                input_ids=pack(input_ids),
                decode_width=1,
            )
        clean = tuple(BlockList(index, pack(blocks)) for index, blocks in enumerate(zero) if blocks)
        return ExecutionPlan(self._round, (), clean, (), tuple(edits), tuple(bindings), None, None, forward, ())

    def _grow(self, request: _Planned, zero: list[list[int]]) -> list[TableEdit]:
        """Take blocks for what the request will have computed; the edits that tell of all it holds."""
        edits = []
        for index, group in enumerate(self._groups):
            held = request.blocks[index]
            while len(held) * group.block_granularity < request.computed:
                block = self._take_block(index)
                zero[index].append(block)
                held.append(block)
            first, request.told[index] = request.told[index], len(held)
            if first < len(held):
                edits.append(TableEdit(request.slot, index, first, pack(held[first:])))
        return edits

    def _take_block(self, index: int) -> int:
        free = self._free_blocks[index]
        if not free:
            packing = self._groups[index].packing
            first = self._free_parents.pop() * packing
            free.extend(range(first + packing - 1, first - 1, -1))
        block = free.pop()
        self._users[index][block] = 1
        return block
