"""State groups of the stamp model: one snapshot a block, checkpoint and final state in one forward."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from data_plane.model.stamp import StampFault, StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from tests.unit.stamp_device import PROMPT, Device, served, with_column

STATE = StampOptions(group_kinds=("state",))
TWO_STATES = StampOptions(group_kinds=("state", "state"), block_granularities=(4, 4), packings=(1, 1))
OTHER_PROMPT = [token + 1 for token in PROMPT]


@pytest.mark.parametrize("granularity", [1, 2, 4, 16])
@pytest.mark.parametrize("chunk", [None, 1, 2, 5])
def test_tokens_are_those_of_the_oracle(granularity: int, chunk: int | None) -> None:
    """Whatever the chunks, though each snapshot is given back when a later one is there."""
    device = Device(STATE, granularity=granularity)
    assert served(device, PROMPT, 24, chunk=chunk) == stamp_continuation(PROMPT, 24, options=STATE)


def test_a_long_request_holds_two_snapshots() -> None:
    """The input and the final state; they are the same block while the state stays inside it. A pool of 2 is enough."""
    device = Device(STATE, blocks=2)
    assert served(device, PROMPT, 30) == stamp_continuation(PROMPT, 30, options=STATE)
    assert [bool(block) for block in device.writer.blocks(1)] == [False] * 9 + [True]
    device.run(None, 1)
    assert [bool(block) for block in device.writer.blocks(1)] == [False] * 9 + [True, True]


def test_a_snapshot_can_be_read_by_eye() -> None:
    """R3.6: the state after T tokens is in row (T - 1) // 4, with its length; the rows between are holes."""
    device = Device(STATE)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)}, checkpoints={1: 8})
    first, second, third = device.writer.blocks(1)
    assert (first, bool(second), bool(third)) == (0, True, True)
    assert [device.snapshot(1, length)["position"] for length in (8, 11)] == [8, 11]
    device.run(None, 1)
    assert device.writer.blocks(1)[2] == third
    assert device.snapshot(1, 12)["position"] == 12, "inside a block the state is advanced in place"
    assert not device.memory.blocks(0)[0].any()


def test_a_checkpoint_and_a_final_state_in_one_forward_equal_two_forwards() -> None:
    """R3.6: the bytes of both snapshots, and the tokens after them. The one at 8 replaces its input at 5 in place."""
    once, twice = Device(STATE, keeps_expired=True), Device(STATE, keeps_expired=True)
    for device in (once, twice):
        device.add(1, PROMPT)
        device.run({1: 5})
    once.run({1: 6}, checkpoints={1: 8})
    twice.run({1: 3})
    twice.run({1: 3})
    for length in (8, 11):
        assert once.snapshot(1, length).tolist() == twice.snapshot(1, length).tolist()
    for device in (once, twice):
        device.run(None, 1)
        assert device.tokens[1] == stamp_continuation(PROMPT, 2, options=STATE)


def test_a_hit_needs_the_snapshot_alone() -> None:
    """R4.3: the one at 8 tokens is shared, nothing left of it; nobody writes it again."""
    device = Device(STATE, keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)}, checkpoints={1: 8})
    shared = device.snapshot(1, 8).tolist()
    turn = [*PROMPT[:8], 70, 71, 72]
    device.add(2, turn, shares=(1, 8))
    assert device.writer.blocks(2) == [0, device.writer.blocks(1)[1]]
    device.run({2: 1}, 1)
    device.run({2: 2}, 1)
    device.run(None, 1, 2)
    assert device.snapshot(1, 8).tolist() == shared
    assert device.tokens[2] == stamp_continuation(turn, 2, options=STATE)
    assert device.tokens[1] == stamp_continuation(PROMPT, 4, options=STATE)


def zero_the_snapshot(device: Device) -> None:
    device.rows(1, 2)[:] = 0


def forget_the_snapshot(device: Device) -> None:
    device.column(1)[2] = 0


def put_an_older_snapshot(device: Device) -> None:
    device.rows(1, 2)[:] = device.rows(1, 1)


def put_another_requests_snapshot(device: Device) -> None:
    device.column(1)[2] = device.column(2)[2]


def put_another_groups_snapshot(device: Device) -> None:
    device.rows(1, 2)[:] = device.rows(1, 2, 1)


def change_the_length(device: Device) -> None:
    device.rows(1, 2)["position"] += 1


def change_the_digest(device: Device) -> None:
    device.rows(1, 2)["digest"] += 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (zero_the_snapshot, "expected the state after 11 tokens, found no state in block .*: stale, zeroed, or"),
        (forget_the_snapshot, "expected a snapshot, found a hole"),
        (put_an_older_snapshot, "expected the state after 11 tokens, found the state after 8 tokens in block"),
        (put_another_requests_snapshot, "expected the state after 11 tokens, found another state after 11 tokens"),
        (put_another_groups_snapshot, "expected the state after 11 tokens, found another state after 11 tokens"),
        (change_the_length, "expected the state after 11 tokens, found the state after 12 tokens"),
        (change_the_digest, "expected the state after 11 tokens, found another state after 11 tokens"),
    ],
)
def test_a_wrong_input_is_seen(damage: Callable[[Device], None], message: str) -> None:
    """Strict: a fault that names slot, group and position. Not strict: other tokens."""
    for strict in (True, False):
        device = Device(replace(TWO_STATES, strict=strict), keeps_expired=True)
        device.add(1, PROMPT)
        device.add(2, OTHER_PROMPT)
        device.run({1: 8, 2: 8})
        device.run({1: 3, 2: 3})
        damage(device)
        if strict:
            with pytest.raises(StampFault, match=f"slot 0, group 'state-0', position 11: {message}"):
                device.run(None, 1)
        elif damage is forget_the_snapshot:
            # The state would be advanced in place, in the null block: a fault of the plan, strict or not.
            with pytest.raises(StampFault, match="position 12: nothing may be written into the null block"):
                device.run(None, 1)
        else:
            for _ in range(4):
                device.run(None, 1)
            assert device.tokens[1] != stamp_continuation(PROMPT, 5, options=TWO_STATES)


def test_a_hit_on_a_snapshot_of_another_group_is_seen() -> None:
    """The slot wrote nothing yet that it could remember; the seal is another."""
    device = Device(TWO_STATES, keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: 8})
    device.add(2, PROMPT, shares=(1, 8))
    put = device.rows(1, 1, 1).copy()
    device.rows(1, 1, 0)[:] = put
    with pytest.raises(StampFault, match="slot 1, group 'state-0', position 8: expected the state after 8 tokens"):
        device.run({2: 3})


def test_a_hit_without_its_snapshot_is_seen() -> None:
    """The boundary was never materialized: its block holds the state of a later position."""
    for strict in (True, False):
        device = Device(replace(STATE, strict=strict), granularity=8, keeps_expired=True)
        device.add(1, PROMPT)
        device.run({1: 5})
        device.add(2, PROMPT)
        device.run({2: len(PROMPT)}, checkpoints={2: 8})
        device.add(3, PROMPT, shares=(2, 8))
        plan = device.writer.plan({3: 3})
        device.rows(2, 0)[:] = device.rows(1, 0)
        if strict:
            with pytest.raises(StampFault, match=r"slot 2, .* after 8 tokens, found the state after 5 tokens"):
                device.carry_out(plan)
        else:
            device.carry_out(plan)
            device.run(None, 3)
            assert device.tokens[3] != stamp_continuation(PROMPT, 2, options=STATE)


def test_a_shared_snapshot_is_never_written() -> None:
    """The table points the next state at the block of a boundary, its own input even: the fault says what is there."""
    device = Device(STATE, keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: 8})
    plan = device.writer.plan({1: 3})
    device.column(1)[2] = device.column(1)[1]
    with pytest.raises(StampFault, match=r"position 11: block 1 is not clean .*, it holds the state after 8 tokens"):
        device.carry_out(replace(plan, tables=(), zero=()))


def test_a_block_that_was_not_zeroed_is_seen_when_it_is_written() -> None:
    """Another request's state of a later position is in it."""
    device = Device(STATE, blocks=1)
    device.add(1, PROMPT)
    device.run({1: 3})
    device.writer.release(1)
    device.add(2, [1, 2, 3])
    with pytest.raises(StampFault, match=r"block 1 is not clean where the state after 2 tokens is .* after 3"):
        device.carry_out(replace(device.writer.plan({2: 2}), zero=()))


def test_a_block_has_one_writer_in_a_round() -> None:
    """Two requests with the same tokens would leave the same state: right by chance, and named."""
    device = Device(STATE)
    device.add(1, PROMPT)
    device.add(2, PROMPT)
    plan = device.writer.plan({1: 4, 2: 4})
    shared = replace(plan.tables[1], blocks=plan.tables[0].blocks)
    with pytest.raises(
        StampFault, match="slot 0, group 'state', position 4: block 1 is written for position 4 of slot"
    ):
        device.carry_out(replace(plan, tables=(plan.tables[0], shared)))


def test_the_null_block_is_never_written() -> None:
    """A table that lacks the block of the final state, or of the checkpoint: refused, strict or not."""
    for strict in (True, False):
        for column, length in ((2, 11), (1, 8)):
            device = Device(replace(STATE, strict=strict))
            device.add(1, PROMPT)
            plan = device.writer.plan({1: 11}, checkpoints={1: 8})
            device.carry_out(replace(plan, forward=None))
            device.column(1)[column] = 0
            with pytest.raises(StampFault, match=f"position {length}: nothing may be written into the null block"):
                device.carry_out(replace(plan, tables=(), zero=()))
            assert not device.memory.blocks(0)[0].any()


@pytest.mark.parametrize("checkpoint", [4, 11, 12])
def test_a_checkpoint_is_inside_its_run(checkpoint: int) -> None:
    """The message names the checkpoint and the run."""
    device = Device(STATE)
    device.add(1, PROMPT)
    device.run({1: 4})
    plan = with_column(device.writer.plan({1: 7}), "checkpoints", [checkpoint])
    with pytest.raises(StampFault, match=f"position {checkpoint}: the checkpoint must be after 4 and before 11"):
        device.carry_out(plan)
