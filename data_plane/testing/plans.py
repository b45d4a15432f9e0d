"""Plans without a scheduler: the simplest planner that could work, for driving a device alone."""

import random
from collections.abc import Collection, Mapping, Sequence
from itertools import count as counting

from msgspec import Struct

from control_plane.messages import (
    BlockList,
    ExecutionPlan,
    ForwardBatch,
    LoadBack,
    Sampling,
    SlotBinding,
    Store,
    StoreSourceGuard,
    TableEdit,
)
from control_plane.messages.columns import pack
from data_plane.model.base import GroupLayout


class Stored(Struct, frozen=True):
    """What a query after the first `tokens` tokens of a request may read, in host blocks, one column a group.

    `ops` are the stores that bring it there.
    """

    tokens: int
    blocks: tuple[tuple[int, ...], ...]
    ops: tuple[int, ...]


class _Pool:
    """The free blocks of one tier."""

    def __init__(self, groups: Sequence[GroupLayout], parents: Sequence[int]) -> None:
        self._groups = tuple(groups)
        self._free_parents = list(parents)
        self._free_blocks: list[list[int]] = [[] for _ in groups]

    def take(self, group: int) -> int:
        """One block. A parent stays with the group that took it first."""
        free = self._free_blocks[group]
        if not free:
            packing = self._groups[group].packing
            first = self._free_parents.pop() * packing
            free.extend(range(first + packing - 1, first - 1, -1))
        return free.pop()

    def give_back(self, group: int, block: int) -> None:
        """The block can be taken again."""
        self._free_blocks[group].append(block)


class _Planned:
    """What the writer knows of one request.

    `blocks` has a list a group, 0 where it holds none; those left of `expired` were given back. `computed` counts its
    tokens that are done, of which the next round feeds the last `replay` again. Of `changed` on, the device has not
    been told.
    """

    def __init__(self, slot: int, prompt: Sequence[int], group_count: int, binding: SlotBinding) -> None:
        self.slot = slot
        self.prompt = list(prompt)
        self.computed = 0
        self.replay = 0
        self.blocks: list[list[int]] = [[] for _ in range(group_count)]
        self.expired = [0] * group_count
        self.changed = [0] * group_count
        self.binding: SlotBinding | None = binding


class PlanWriter:
    """Gives slots and blocks to requests, takes them back, and writes rounds as plans.

    Blocks are taken from the lowest free parent up, or in the order that `shuffle_seed` gives. A request gives back
    what slid out of its windows and the snapshots that it left behind, unless `keeps_expired`: then others can share
    them. Nothing is evicted: running out of slots or blocks is an IndexError.
    """

    def __init__(
        self,
        groups: Sequence[GroupLayout],
        *,
        device_blocks: int,
        slots: int,
        host_blocks: int = 0,
        shuffle_seed: int | None = None,
        keeps_expired: bool = False,
    ) -> None:
        self._groups = tuple(groups)
        parents = list(range(device_blocks, 0, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(parents)
            random.Random(shuffle_seed).shuffle(self._free_slots)
        self._keeps_expired = keeps_expired
        self._device = _Pool(groups, parents)
        self._host = _Pool(groups, range(host_blocks, 0, -1))
        self._ops = counting(1)
        self._stores: list[Store] = []
        self._load_backs: list[LoadBack] = []
        self._users: list[dict[int, int]] = [{} for _ in groups]
        self._requests: dict[int, _Planned] = {}
        self._releases: list[TableEdit] = []
        self._round = 0

    def add(
        self,
        key: int,
        prompt: Sequence[int],
        *,
        sampling: Sampling | None = None,
        shares: tuple[int, int] = (0, 0),
        loads: Stored | None = None,
    ) -> int:
        """A new request takes a slot, which is returned.

        `shares` names an earlier request and how many of its first tokens need not be computed again: whole blocks of
        every group. The two then share what a query after them may read; what is replayable is fed again instead.
        `loads` brings the same from the host into blocks of its own, in the next plan.
        """
        sampling = sampling or Sampling()
        history = pack(prompt) if sampling.needs_history else b""
        slot = self._free_slots.pop()
        request = _Planned(slot, prompt, len(self._groups), SlotBinding(slot, key, len(prompt), history, sampling))
        other, tokens = shares
        if loads is not None:
            tokens = loads.tokens
        if tokens:
            windows = [min(group.window, tokens) for group in self._groups if group.replayable]
            request.computed, request.replay = tokens, max(windows, default=0)
            for index, group in enumerate(self._groups):
                if loads is not None:
                    self._load(request, index, group, loads.blocks[index])
                else:
                    self._share(request, self._requests[other], index, group)
        self._requests[key] = request
        return slot

    def store(self, key: int, tokens: int, *, guard: StoreSourceGuard = StoreSourceGuard.STREAM_ORDERED) -> Stored:
        """Copy to the host, in the next plan, what a query after the first `tokens` tokens of a request may read.

        They are whole blocks of every group, and computed. Unless the store is stream-ordered, the request must not
        be released before it is over.
        """
        columns, ops = [], []
        for index, group in enumerate(self._groups):
            _, sources = self._readable(self._requests[key], tokens, index, group)
            destinations = tuple(self._host.take(index) for _ in sources)
            columns.append(destinations)
            if sources:
                ops.append(next(self._ops))
                self._stores.append(Store(ops[-1], guard, index, pack(sources), pack(destinations)))
        return Stored(tokens, tuple(columns), tuple(ops))

    def drop(self, stored: Stored) -> None:
        """What was stored is not needed any more: no copy to or from it is out, and the host blocks can be taken."""
        for index, blocks in enumerate(stored.blocks):
            for block in blocks:
                self._host.give_back(index, block)

    def release(self, key: int) -> None:
        """The request is over: its slot and blocks can be taken again, in the next plan."""
        request = self._requests.pop(key)
        for index, blocks in enumerate(request.blocks):
            self._releases.append(TableEdit(request.slot, index, 0, b""))
            for block in filter(None, blocks):
                self._give_back(index, block)
        self._free_slots.append(request.slot)

    def blocks(self, key: int, group: int = 0) -> list[int]:
        """The blocks that a request holds, as they stand in its table; 0 is a hole."""
        return list(self._requests[key].blocks[group])

    def plan(
        self,
        extends: Mapping[int, int] | None = None,
        decodes: Collection[int] = (),
        *,
        checkpoints: Mapping[int, int] | None = None,
    ) -> ExecutionPlan:
        """One round: so many prompt tokens of each request in `extends`, and one step of each in `decodes`.

        `checkpoints` names positions inside those extends at which the state is kept too.
        """
        self._round += 1
        lengths, marks = dict(extends or {}), checkpoints or {}
        keys = [*lengths, *decodes]
        requests = [self._requests[key] for key in keys]
        replays = [request.replay for request in requests]
        prefixes = [request.computed - request.replay for request in requests]
        inputs = [lengths.get(key, 1) + replay for key, replay in zip(keys, replays, strict=True)]
        input_ids: list[int] = []
        zero: list[list[int]] = [[] for _ in self._groups]
        edits, self._releases = self._releases, []
        bindings = []
        for key, request, prefix, count in zip(keys, requests, prefixes, inputs, strict=True):
            input_ids += request.prompt[prefix : prefix + count]
            edits += self._advance(request, prefix + count, marks.get(key, 0), zero)
            if request.binding is not None:
                bindings.append(request.binding)
                request.binding = None
        forward = None
        if keys:
            extend_count = len(lengths)
            prefills = [len(request.prompt) for request in requests[:extend_count]]
            forward = ForwardBatch(
                keys=pack(keys),
                slots=pack([request.slot for request in requests]),
                num_extends=extend_count,
                input_lengths=pack(inputs),
                prefix_lengths=pack(prefixes),
                prefill_lengths=pack(prefills),
                replay_lengths=pack(replays[:extend_count]),
                checkpoints=pack([marks.get(key, 0) for key in lengths]),
                input_ids=pack(input_ids),
                decode_width=1,
            )
        clean = tuple(BlockList(index, pack(blocks)) for index, blocks in enumerate(zero) if blocks)
        stores, self._stores = tuple(self._stores), []
        loads, self._load_backs = tuple(self._load_backs), []
        return ExecutionPlan(self._round, stores, clean, loads, tuple(edits), tuple(bindings), None, None, forward, ())

    def _share(self, request: _Planned, other: _Planned, index: int, group: GroupLayout) -> None:
        """Hold what stands in another request's table where a query after the shared tokens may read."""
        first, shared = self._readable(other, request.computed, index, group)
        self._begin_with(request, index, group, first, shared)
        for block in shared:
            self._users[index][block] += 1

    def _load(self, request: _Planned, index: int, group: GroupLayout, sources: Sequence[int]) -> None:
        """Hold blocks of its own where a query after the loaded tokens may read."""
        destinations = [self._take_block(index) for _ in sources]
        self._begin_with(request, index, group, _first_readable(group, request.computed), destinations)
        if sources:
            self._load_backs.append(LoadBack(next(self._ops), index, pack(sources), pack(destinations)))

    def _readable(self, request: _Planned, tokens: int, index: int, group: GroupLayout) -> tuple[int, list[int]]:
        """Where a query after so many tokens of a request begins to read, and the blocks there that can be shared."""
        granularity = group.block_granularity
        assert tokens % granularity == 0, f"{tokens} tokens are no whole blocks"
        first = _first_readable(group, tokens)
        blocks = [] if group.replayable else request.blocks[index][first // granularity : tokens // granularity]
        assert all(blocks), f"group {group.id!r}: the blocks before token {tokens} are not held any more"
        return first, blocks

    def _begin_with(self, request: _Planned, index: int, group: GroupLayout, first: int, blocks: Sequence[int]) -> None:
        begin = request.computed - request.replay if group.replayable else first
        holes = begin // group.block_granularity
        request.blocks[index] = [0] * holes + list(blocks)
        request.expired[index] = holes

    def _advance(self, request: _Planned, end: int, checkpoint: int, zero: list[list[int]]) -> list[TableEdit]:
        """Give back what no query from here on reads, and take blocks up to `end`; the edits that tell of both."""
        edits = []
        for index, group in enumerate(self._groups):
            held, changed = request.blocks[index], request.changed[index]
            needed = min(_first_readable(group, request.computed), request.computed - request.replay)
            expired = needed // group.block_granularity
            if not self._keeps_expired:
                for column in range(request.expired[index], expired):
                    if held[column]:
                        self._give_back(index, held[column])
                        held[column] = 0
                        changed = min(changed, column)
                request.expired[index] = max(request.expired[index], expired)
            for column in _columns(group, request, end, checkpoint):
                held += [0] * (column + 1 - len(held))
                if not held[column]:
                    held[column] = self._take_block(index)
                    zero[index].append(held[column])
                    changed = min(changed, column)
            if changed < len(held):
                edits.append(TableEdit(request.slot, index, changed, pack(held[changed:])))
            request.changed[index] = len(held)
        request.computed, request.replay = end, 0
        return edits

    def _take_block(self, index: int) -> int:
        block = self._device.take(index)
        self._users[index][block] = 1
        return block

    def _give_back(self, index: int, block: int) -> None:
        self._users[index][block] -= 1
        if not self._users[index][block]:
            self._device.give_back(index, block)


def _first_readable(group: GroupLayout, computed: int) -> int:
    """The first position whose row, or snapshot, the next query after so many computed tokens reads."""
    if group.kind == "full":
        return 0
    return max(0, computed - 1 if group.kind == "state" else computed - group.window + 1)


def _columns(group: GroupLayout, request: _Planned, end: int, checkpoint: int) -> Collection[int]:
    """Where in the table the next round writes."""
    granularity = group.block_granularity
    if group.kind == "state":
        return [(length - 1) // granularity for length in (checkpoint, end) if length]
    begin = request.computed - request.replay if group.replayable else request.computed
    return range(begin // granularity, (end - 1) // granularity + 1)
