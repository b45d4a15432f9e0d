"""What the executor declares is what is touched: not less, which would hide a conflict, and nothing beside it."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

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
from data_plane.accesses import PlanAccesses
from data_plane.batch.rows import Rows
from data_plane.model.base import GroupLayout
from data_plane.model.stamp import StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.streams.base import Access, BlockSpan, Lane, SlotState, Span, StagingBuffers, TableRows, Tier
from tests.unit.stamp_device import Device
from tests.unit.test_stamp_mixes import BOUNDARY, mixes

GARBAGE = 0xAB


class Blinkered(Device):
    """A device whose model sees what its batch declared and garbage elsewhere, and must write where it declared to."""

    def __init__(self, options: StampOptions, **sizes: Any) -> None:
        super().__init__(options, **sizes)
        self._declared = self.accesses()

    def carry_out(self, plan: ExecutionPlan, *, lost: tuple[int, ...] = ()) -> None:
        for each in plan.zero:
            self.memory.blocks(each.group)[np.frombuffer(each.blocks, dtype=np.int32)] = 0
        self._declared.tables(plan.tables)
        assert plan.forward is not None
        access = self._declared.forward(Rows(plan.forward))
        written = self._bytes_of(access.writes)
        seen = self._bytes_of(access.reads) | written
        arena = self.memory.blocks(0).reshape(-1)
        before = arena.copy()
        arena[~seen] = GARBAGE
        super().carry_out(replace(plan, zero=()), lost=lost)
        assert (arena[~seen] == GARBAGE).all(), "something is written where nothing was declared"
        assert (arena[seen & ~written] == before[seen & ~written]).all(), "what is only read was written"
        arena[~seen] = before[~seen]

    def _bytes_of(self, spans: tuple[Any, ...]) -> Any:
        mask = np.zeros(self.memory.blocks(0).size, dtype=np.bool_)
        for span in spans:
            if isinstance(span, BlockSpan):
                mask.reshape(self.memory.blocks(span.group).shape)[span.blocks] = True
        return mask


@settings(max_examples=100, deadline=None)
@given(options=mixes(), seed=st.integers(0, 2**32))
def test_a_model_needs_nothing_that_its_batch_did_not_declare(options: StampOptions, seed: int) -> None:
    """Any groups, chunks and batches, a shared beginning: right tokens with garbage in all undeclared blocks."""
    chance = random.Random(seed)
    options = replace(options, strict=True)
    device = Blinkered(options, seed=seed, blocks=300, keeps_expired=True)
    prompts = {key: [chance.randrange(256) for _ in range(chance.randrange(9, 24))] for key in (1, 2)}
    prompts[2][:BOUNDARY] = prompts[1][:BOUNDARY]
    left = {1: len(prompts[1])}
    device.add(1, prompts[1])
    while len(device.tokens) < 2 or min(map(len, device.tokens.values())) < 5:
        if 2 not in left and not left[1]:
            device.add(2, prompts[2], shares=(1, BOUNDARY))
            left[2] = len(prompts[2]) - BOUNDARY
        extends = {key: chance.randint(1, count) for key, count in left.items() if count}
        checkpoints = {}
        for key, count in extends.items():
            begin = len(prompts[key]) - left[key]
            inside = [mark for mark in range(begin + 1, begin + count) if mark % BOUNDARY == 0]
            if inside and chance.random() < 0.7:
                checkpoints[key] = inside[-1]
            # A snapshot at the boundary is what the second request begins with.
            if key == 1 and begin < BOUNDARY < begin + count:
                checkpoints[key] = BOUNDARY
        decodes = [key for key, count in left.items() if not count]
        device.run(extends, *decodes, checkpoints=checkpoints)
        for key, count in extends.items():
            left[key] -= count
    for key, tokens in device.tokens.items():
        assert tokens == stamp_continuation(prompts[key], len(tokens), options=options, sampling=Sampling())


def accesses(*groups: GroupLayout) -> PlanAccesses:
    """Three slots with tables of eight columns; column `c` of slot `s` holds block `10 * s + c + 1`, from 1 on."""
    made = PlanAccesses(groups, slots=3, widths=[8] * len(groups), block_counts=[40] * len(groups))
    for group in range(len(groups)):
        made.tables([TableEdit(slot, group, 0, pack(range(10 * slot + 1, 10 * slot + 9))) for slot in range(3)])
    return made


def batch(slots: list[int], prefixes: list[int], lengths: list[int], *, replay: int = 0, checkpoint: int = 0) -> Rows:
    """The first row extends, the others decode."""
    return Rows(
        ForwardBatch(
            keys=pack(range(len(slots))),
            slots=pack(slots),
            num_extends=1,
            input_lengths=pack(lengths),
            prefix_lengths=pack(prefixes),
            prefill_lengths=pack([100]),
            replay_lengths=pack([replay]),
            checkpoints=pack([checkpoint]),
            input_ids=pack([7] * lengths[0]),
            decode_width=1,
        )
    )


def of_blocks(access: Access) -> tuple[list[int], list[int]]:
    """The blocks read and written in the only group."""
    read, written = (
        [span.blocks.tolist() for span in spans if isinstance(span, BlockSpan)]
        for spans in (access.reads, access.writes)
    )
    assert len(read) == len(written) == 1
    return sorted(read[0]), sorted(written[0])


def test_a_full_group_reads_all_the_history_and_writes_what_is_fed() -> None:
    """Slot 0 feeds [5, 10), of which 2 tokens are only fed again; slot 2 decodes position 8."""
    access = accesses(GroupLayout("full", "full", 4, 64)).forward(batch([0, 2], [5, 8], [5, 1], replay=2))
    assert of_blocks(access) == ([1, 2, 3, 21, 22, 23], [2, 3, 23])
    assert [span.slots.tolist() for span in access.reads if isinstance(span, TableRows)] == [[0, 2]]
    assert [span.slots.tolist() for span in access.writes if isinstance(span, SlotState)] == [[0, 2]]


def test_a_sliding_group_reads_no_further_back_than_its_window() -> None:
    """A window of 4: the query at 13 reads back to 10, the one at 8 to 5."""
    group = GroupLayout("sliding", "sliding", 2, 64, window=4)
    access = accesses(group).forward(batch([0, 2], [13, 8], [2, 1]))
    assert of_blocks(access) == ([6, 7, 8, 23, 24, 25], [7, 8, 25])


def test_a_replayable_group_writes_what_is_fed_again() -> None:
    """Positions [4, 8) are fed again, 8 and 9 computed: all of them are written, the query at 8 reads back to 5."""
    group = GroupLayout("sliding", "sliding", 2, 64, window=4, replayable=True)
    access = accesses(group).forward(batch([0], [4], [6], replay=4))
    assert of_blocks(access) == ([3, 4, 5], [3, 4, 5])


def test_a_state_group_touches_the_snapshots_alone() -> None:
    """From the state after 6 tokens to those after 8 (a checkpoint) and 17; a decode updates one in place."""
    access = accesses(GroupLayout("state", "state", 4, 64)).forward(batch([0, 2], [6, 5], [11, 1], checkpoint=8))
    assert of_blocks(access) == ([2, 22], [2, 5, 22])


def test_a_request_without_a_past_reads_no_snapshot() -> None:
    """Its first state is the empty one."""
    access = accesses(GroupLayout("state", "state", 4, 64)).forward(batch([1], [0], [3]))
    assert of_blocks(access) == ([], [11])


def test_tables_are_followed_in_the_order_of_the_steps_and_holes_are_nothing() -> None:
    """A row released, and partly filled again: the forward after it touches what it will find then."""
    declared = accesses(GroupLayout("full", "full", 4, 64))
    access = declared.tables([TableEdit(1, 0, 0, b""), TableEdit(1, 0, 1, pack([33]))])
    assert [(span.group, set(span.slots.tolist())) for span in access.writes] == [(0, {1})]
    assert of_blocks(declared.forward(batch([1], [4], [3]))) == ([33], [33])


@pytest.mark.parametrize("block", [0, -3, 40, 2**30])
def test_what_a_plan_at_fault_names_is_left_to_the_step_that_will_raise(block: int) -> None:
    """Blocks, slots and columns that do not exist are not declared, and nothing raises here."""
    declared = accesses(GroupLayout("full", "full", 4, 64))
    (span,) = declared.zero([BlockList(0, pack([3, block])), BlockList(7, pack([1]))]).writes
    assert span.blocks.tolist() == [3]
    assert declared.tables([TableEdit(block, 4, 0, b"")]).writes == ()
    bound = declared.bindings([SlotBinding(slot, 1, 1, b"", Sampling()) for slot in (2, 3, -1)])
    assert [span.slots.tolist() for span in bound.writes] == [[2]]
    assert of_blocks(declared.forward(batch([0, 9], [30, 0], [9, 1]))) == ([1, 2, 3, 4, 5, 6, 7, 8], [8])


def of_copies(spans: tuple[Span, ...]) -> list[tuple[Any, ...]]:
    """What a step of a copy touches, in one word each."""
    found: list[tuple[Any, ...]] = []
    for span in spans:
        if isinstance(span, StagingBuffers):
            found.append((span.lane, span.buffers.tolist()))
        elif isinstance(span, BlockSpan):
            found.append((span.tier, span.group, span.blocks.tolist()))
    return found


def test_each_step_of_a_copy_touches_its_own_tier_and_the_buffer_of_its_lane() -> None:
    """Device, buffer, host; and back."""
    declared = accesses(GroupLayout("full", "full", 4, 64), GroupLayout("state", "state", 4, 64))
    store = Store(7, StoreSourceGuard.STREAM_ORDERED, 1, pack([5, 6]), pack([2, 3]))
    load = LoadBack(8, 0, pack([4]), pack([9]))
    device, host = (Tier.DEVICE, 1, [5, 6]), (Tier.HOST, 1, [2, 3])
    steps = [
        (declared.gather(store, 1), device, (Lane.STORE, [1])),
        (declared.write(store, 1), (Lane.STORE, [1]), host),
        (declared.write_directly(store), device, host),
        (declared.fill(load, 3), (Tier.HOST, 0, [4]), (Lane.LOAD, [3])),
        (declared.scatter(load, 3), (Lane.LOAD, [3]), (Tier.DEVICE, 0, [9])),
    ]
    for access, read, written in steps:
        assert (of_copies(access.reads), of_copies(access.writes)) == ([read], [written])
