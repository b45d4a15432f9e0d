"""What was computed goes to the host and comes back whole, and a copy that fails hurts nobody else."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.messages import (
    Event,
    ExecutionPlan,
    ExtendResult,
    ForwardFailed,
    LoadBack,
    LoadBackDone,
    Store,
    StoreSourceGuard,
    TableEdit,
    WriteBackDone,
)
from control_plane.messages.columns import pack
from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import OF_LOST_ROWS, StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.faulty_copies import CopyStep
from data_plane.testing.plans import Stored
from tests.unit.test_stamp_mixes import BOUNDARY, mixes
from tests.unit.tier_device import TierDevice

ORDERED, PINNED = StoreSourceGuard.STREAM_ORDERED, StoreSourceGuard.PINNED_UNTIL_ACK
PLAIN = StampOptions(block_granularities=(4,), max_context_tokens=64)
MIX = StampOptions(
    group_kinds=("full", "sliding", "state"),
    block_granularities=(4, 2, 4),
    packings=(1, 3, 2),
    windows=(0, 5, 0),
    max_context_tokens=64,
)
PROMPT = [31, 41, 59, 26, 53, 58, 97, 93, 23]
OTHER = [3, 1, 4, 1, 5]
SEEDS = range(8)


def continued(prompt: list[int], count: int, options: StampOptions) -> list[int]:
    return stamp_continuation(prompt, count, options=options)


def stored_beginning(device: TierDevice, *, guard: StoreSourceGuard = ORDERED) -> Stored:
    """Request 1 computes PROMPT, its first BOUNDARY tokens go to the host, and its blocks to request 2 and on."""
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)}, checkpoints={1: BOUNDARY})
    stored = device.writer.store(1, BOUNDARY, guard=guard)
    if guard is ORDERED:
        device.writer.release(1)
    device.writer.add(2, OTHER)
    device.run({2: len(OTHER)})
    device.land_stores()
    if guard is PINNED:
        device.writer.release(1)
    return stored


@settings(max_examples=60, deadline=None)
@given(options=mixes(), seed=st.integers(0, 2**32), guard=st.sampled_from(StoreSourceGuard))
def test_what_comes_back_is_continued_as_if_it_had_stayed(
    options: StampOptions, seed: int, guard: StoreSourceGuard
) -> None:
    """Any groups: stored while its blocks are given away, or pinned; then loaded for two requests in one round."""
    device = TierDevice(options, seed=seed, blocks=300, host_blocks=60)
    stored = stored_beginning(device, guard=guard)
    prompts = {3: [*PROMPT[:BOUNDARY], 7, 7, 7], 4: PROMPT}
    for key, prompt in prompts.items():
        device.writer.add(key, prompt, loads=stored)
    device.send(device.plan({key: len(prompt) - BOUNDARY for key, prompt in prompts.items()}, 2))
    for _ in range(3):
        device.send(device.plan(None, 2, 3, 4))
    device.land()
    for key, prompt in (prompts | {2: OTHER}).items():
        assert device.tokens[key] == continued(prompt, len(device.tokens[key]), options)
    assert all(device.copied.values())
    device.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pool_for_one_passes_through_the_host_again_and_again(seed: int) -> None:
    """Each of six requests begins with what the one before it loaded and stored again, in blocks given up just then."""
    device = TierDevice(MIX, seed=seed, blocks=12, host_blocks=12)
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)}, checkpoints={1: BOUNDARY})
    for key in range(1, 7):
        stored = device.writer.store(key, BOUNDARY)
        device.writer.release(key)
        device.writer.add(10, OTHER)
        device.run({10: len(OTHER)})
        device.land_stores()
        device.writer.release(10)
        prompt = [*PROMPT[:BOUNDARY], key]
        device.writer.add(key + 1, prompt, loads=stored)
        device.run({key + 1: 1})
        assert device.tokens[key + 1] == continued(prompt, 1, MIX)
        device.writer.drop(stored)
    device.close()


@pytest.mark.parametrize("step", [CopyStep.GATHER, CopyStep.WRITE, CopyStep.WRITE_DIRECTLY])
def test_a_failed_store_is_answered_so_and_nothing_else_happens(step: CopyStep) -> None:
    """One group's store fails half way: that of the next group, the round and the requests are as usual."""
    for seed in SEEDS:
        device = TierDevice(MIX, seed=seed, fail_ops={2}, steps={step})
        stored = stored_beginning(device, guard=PINNED if step is CopyStep.WRITE_DIRECTLY else ORDERED)
        assert stored.ops == (1, 2, 3)
        assert device.copied == {1: True, 2: False, 3: True}
        device.run(None, 2)
        assert device.tokens[2] == continued(OTHER, 2, MIX)
        device.close()


@pytest.mark.parametrize("step", [CopyStep.FILL, CopyStep.SCATTER])
@pytest.mark.parametrize("failing", [4, 5, 6])
def test_a_failed_load_loses_the_rows_that_need_it_and_no_others(step: CopyStep, failing: int) -> None:
    """Any one group: request 3, also in the round after, computes nothing; 2 beside it says what it should."""
    for seed in SEEDS:
        device = TierDevice(MIX, seed=seed, fail_ops={failing}, steps={step})
        stored = stored_beginning(device)
        device.writer.add(3, PROMPT, loads=stored)
        device.send(device.plan({3: 1}, 2))
        device.send(device.plan(None, 2, 3))
        device.land()
        assert device.copied == {op: op != failing for op in range(1, 7)}
        assert device.tokens[3] == [OF_LOST_ROWS] * 2
        assert device.tokens[2] == continued(OTHER, 3, MIX)
        device.close()


def test_the_planner_hears_of_a_failed_load_before_its_rounds_result() -> None:
    """What went well in one letter, what failed ends the next, then the result, each of its own."""
    device = TierDevice(MIX, fail_ops={5})
    stored = stored_beginning(device)
    device.letters.clear()
    device.writer.add(3, PROMPT, loads=stored)
    device.run({3: 1})
    first, second, third = device.letters
    assert first == [LoadBackDone(4), LoadBackDone(6)]
    assert second == [LoadBackDone(5, success=False)]
    assert [type(event) for event in third] == [ExtendResult]
    device.close()


def test_loads_without_a_batch_are_answered_too() -> None:
    """A plan that only loads; the batch that reads it comes in the next."""
    device = TierDevice(MIX)
    stored = stored_beginning(device)
    device.letters.clear()
    device.writer.add(3, PROMPT, loads=stored)
    device.run()
    assert device.letters == [[LoadBackDone(4), LoadBackDone(5), LoadBackDone(6)]]
    device.run({3: 1})
    assert device.tokens[3] == continued(PROMPT, 1, MIX)
    device.close()


@pytest.mark.parametrize("again", ["zeroed", "loaded"])
def test_a_block_that_was_not_filled_is_as_good_as_any_once_it_is_zeroed_or_loaded(again: str) -> None:
    """The request is withdrawn; another takes its slot and its blocks, which it computes, or loads without a fault."""
    fail_ops = {2}
    device = TierDevice(PLAIN, fail_ops=fail_ops)
    stored = stored_beginning(device)
    device.writer.add(3, PROMPT, loads=stored)
    device.run({3: 1})
    assert device.copied[2] is False
    spoiled = set(device.writer.blocks(3)[:2])
    device.writer.release(3)
    fail_ops.clear()
    if again == "loaded":
        device.writer.add(4, PROMPT, loads=stored)
        device.run({4: 1})
    else:
        device.writer.add(4, PROMPT)
        device.run({4: len(PROMPT)})
    assert spoiled <= set(device.writer.blocks(4))
    device.run(None, 2, 4)
    assert device.tokens[4] == continued(PROMPT, 2, PLAIN)
    assert device.tokens[2] == continued(OTHER, 2, PLAIN)
    device.close()


def test_who_shares_what_a_lost_row_should_have_written_is_lost_with_it() -> None:
    """Only the snapshot of request 3 fails to load; request 4, planned too early to know, goes on from a later one."""
    options = StampOptions(group_kinds=("full", "state"), block_granularities=(4, 4), packings=(1, 1))
    prompt = [*PROMPT[:BOUNDARY], *range(100, 109)]
    for seed in SEEDS:
        device = TierDevice(options, seed=seed, fail_ops={4})
        stored = stored_beginning(device)
        device.writer.add(3, prompt, loads=stored)
        device.send(device.plan({3: 9}, 2, checkpoints={3: 2 * BOUNDARY}))
        device.writer.add(4, prompt, shares=(3, 2 * BOUNDARY))
        device.send(device.plan({4: 1}, 2))
        device.land()
        assert device.tokens[3] == device.tokens[4] == [OF_LOST_ROWS]
        assert device.tokens[2] == continued(OTHER, 3, options)
        device.close()


def test_who_shares_what_a_failed_forward_should_have_written_does_not_fail_its_own() -> None:
    """The round of request 3 raises; request 4 of the next was to share its blocks; request 2 beside it is served."""
    device = TierDevice(MIX, wrap=lambda runner: FaultyRunner(runner, fail_keys={3}))
    device.writer.add(2, OTHER)
    device.run({2: len(OTHER)})
    prompt = [*PROMPT[:BOUNDARY], 5]
    device.writer.add(3, prompt)
    device.send(device.plan({3: len(prompt)}, checkpoints={3: BOUNDARY}))
    device.writer.add(4, prompt, shares=(3, BOUNDARY))
    device.send(device.plan({4: 1}, 2))
    device.land()
    assert isinstance(device.letters[-2][0], ForwardFailed)
    assert device.tokens == {2: continued(OTHER, 2, MIX), 4: [OF_LOST_ROWS]}
    device.close()


def copy_plan(device: TierDevice, *copies: Store | LoadBack, **fields: Any) -> ExecutionPlan:
    plan = device.plan()
    stores = tuple(copy for copy in copies if isinstance(copy, Store))
    loads = tuple(copy for copy in copies if isinstance(copy, LoadBack))
    return ExecutionPlan(plan.round, stores, (), loads, fields.get("tables", ()), (), None, None, None, ())


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        (Store(1, ORDERED, 3, pack([1]), pack([1])), "store 1: group 3 of 3"),
        (Store(1, PINNED, 0, pack([1, 2]), pack([1])), "store 1: 2 sources and 1 destinations"),
        (Store(1, ORDERED, 0, pack([1, 0]), pack([1, 2])), "store 1: group 0: source block 0 is null"),
        (Store(1, PINNED, 0, pack([1]), pack([0])), "store 1: group 0: destination block 0 is null"),
        (Store(1, ORDERED, 1, pack([-1]), pack([2])), "store 1: group 1: source block -1 is not among the"),
        (LoadBack(1, 0, pack([10**6]), pack([1])), "load-back 1: group 0: source block 1000000 is not among the"),
        (LoadBack(1, 2, pack([1]), pack([10**6])), "load-back 1: group 2: destination block 1000000 is not among"),
    ],
)
def test_blocks_that_do_not_exist_stop_the_device_and_the_copy_is_answered(
    copy: Store | LoadBack, message: str
) -> None:
    """Planner and device disagree: the plan's other copies are answered as well, and none is said to have gone well."""
    device = TierDevice(MIX)
    good = (Store(8, ORDERED, 0, pack([1]), pack([1])), LoadBack(9, 0, pack([2]), pack([2])))
    device.send(copy_plan(device, *good, copy))
    device.land()
    device.land_stores()
    assert device.handle.failure is not None
    assert message in device.handle.failure
    assert device.copied.keys() == {1, 8, 9}
    assert not device.copied[1]
    assert not device.copied[9]


def test_a_device_that_stopped_answers_every_copy_after_the_requests_ended() -> None:
    """Not one is begun. The failed forward comes first: a request must not be brought back for a load that failed."""
    device = TierDevice(MIX)
    device.send(copy_plan(device, tables=(TableEdit(99, 0, 0, b""),)))
    device.land()
    device.letters.clear()
    store = Store(5, PINNED, 0, pack([1]), pack([1]))
    device.send(copy_plan(device, store, LoadBack(6, 0, pack([1]), pack([2]))))
    device.land()
    device.land_stores()
    reason = device.handle.failure
    assert reason is not None
    expected: list[list[Event]] = [
        [ForwardFailed(2, reason)],
        [LoadBackDone(6, success=False)],
        [WriteBackDone(5, success=False)],
    ]
    assert device.letters == expected


def test_copies_of_nothing_are_over_at_once() -> None:
    """A store and a load-back without blocks."""
    device = TierDevice(MIX)
    device.send(
        copy_plan(device, Store(1, ORDERED, 0, b"", b""), Store(2, PINNED, 1, b"", b""), LoadBack(3, 2, b"", b""))
    )
    device.land()
    device.land_stores()
    assert device.copied == {1: True, 2: True, 3: True}
    device.close()


def test_without_memory_for_a_buffer_the_copies_fail_and_the_round_does_not() -> None:
    """The first store finds none, nor does the first load-back; request 2 goes on."""

    class Full:
        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.is_full = True

        def buffer(self, size_bytes: int) -> Any:
            if self.is_full:
                raise MemoryError(f"no room for {size_bytes} bytes")
            return self._inner.buffer(size_bytes)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    made: list[Full] = []
    device = TierDevice(PLAIN, wrap_copies=lambda inner: made.append(Full(inner)) or made[-1])
    device.writer.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    stored = device.writer.store(1, BOUNDARY)
    device.run(None, 1)
    device.land_stores()
    made[0].is_full = False
    stored = device.writer.store(1, BOUNDARY)
    device.run(None, 1)
    device.land_stores()
    made[0].is_full = True
    device.writer.add(3, PROMPT, loads=stored)
    device.run({3: 1}, 1)
    assert device.copied == {1: False, 2: True, 3: False}
    assert device.tokens == {1: continued(PROMPT, 4, PLAIN), 3: [OF_LOST_ROWS]}
    device.close()


def test_stores_that_are_over_are_acknowledged_without_waiting() -> None:
    """Asked again and again, the device says when; in the order in which they were planned, and no sooner."""
    device = TierDevice(MIX, seed=3)
    device.writer.add(1, PROMPT[:BOUNDARY])
    device.run({1: BOUNDARY})
    device.writer.store(1, BOUNDARY, guard=PINNED)
    device.send(device.plan(None, 1))
    assert device.forward.stores_out == 3
    counts = []
    while device.forward.stores_out:
        counts.append(device.forward.land_passed_stores())
    assert sum(counts) == 3
    assert counts[0] == 0
    events = [event for letter in device.letters for event in letter if isinstance(event, WriteBackDone)]
    assert events == [WriteBackDone(op) for op in (1, 2, 3)]
    assert device.forward.land_passed_stores() == 0
    assert not device.forward.land_store()
    device.land()
    assert device.tokens[1] == continued(PROMPT[:BOUNDARY], 2, MIX)
    device.close()


def test_closing_a_device_that_is_stepped_ends_rounds_and_stores() -> None:
    """Three stores and two rounds are out: all are answered."""
    device = TierDevice(MIX, seed=5)
    device.writer.add(1, PROMPT[:BOUNDARY])
    device.send(device.plan({1: BOUNDARY}))
    device.writer.store(1, BOUNDARY)
    device.send(device.plan(None, 1))
    device.close()
    assert device.copied == {1: True, 2: True, 3: True}
    assert len(device.tokens[1]) == 2
