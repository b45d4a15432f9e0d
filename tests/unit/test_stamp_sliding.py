"""Sliding and replayable groups of the stamp model: what a window reads, and what it must not need."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from data_plane.model.stamp import StampFault, StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from tests.unit.stamp_device import PROMPT, Device, served, with_column

SLIDING = StampOptions(group_kinds=("sliding",), windows=(5,))
TWO_WINDOWS = StampOptions(
    group_kinds=("sliding", "sliding"), block_granularities=(4, 4), packings=(1, 1), windows=(5, 5)
)
REPLAYED = StampOptions(
    group_kinds=("full", "sliding", "sliding"),
    block_granularities=(4, 2, 2),
    packings=(1, 1, 2),
    windows=(0, 3, 5),
    replayables=(False, False, True),
)
OTHER_PROMPT = [token + 1 for token in PROMPT]


@pytest.mark.parametrize("replayable", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("chunk", [None, 1, 2, 5])
def test_tokens_are_those_of_the_oracle(window: int, chunk: int | None, replayable: bool) -> None:
    """Whatever the chunks, though what slid out is given back and used by nobody else."""
    options = replace(SLIDING, windows=(window,), replayables=(replayable,))
    assert served(Device(options), PROMPT, 24, chunk=chunk) == stamp_continuation(PROMPT, 24, options=options)


def test_the_oracle_sees_what_the_kind_of_group_lets_it_see() -> None:
    """A window of rows that stand alone forgets what slid out; one of chained rows, or of more tokens, does not."""
    alone = replace(SLIDING, replayables=(True,))
    changed = [99, *PROMPT[1:]]
    assert stamp_continuation(PROMPT, 9, options=alone) == stamp_continuation(changed, 9, options=alone)
    assert stamp_continuation(PROMPT, 9, options=SLIDING) != stamp_continuation(changed, 9, options=SLIDING)
    wider = replace(alone, windows=(len(PROMPT),))
    assert stamp_continuation(PROMPT, 9, options=wider) != stamp_continuation(changed, 9, options=wider)
    one = replace(SLIDING, windows=(1,))
    last = [1, 2, PROMPT[-1]]
    assert stamp_continuation(PROMPT, 1, options=one) != stamp_continuation(last, 1, options=one), (
        "its position differs"
    )
    assert stamp_continuation(PROMPT, 1, options=one) == stamp_continuation([3] * 10 + last[-1:], 1, options=one)


def test_a_long_request_holds_its_window_alone() -> None:
    """Window 5 in blocks of 4: never more than 3 blocks; a pool of 3 is enough for 40 tokens."""
    device = Device(SLIDING, blocks=3)
    assert served(device, PROMPT[:8], 33) == stamp_continuation(PROMPT[:8], 33, options=SLIDING)
    held = device.writer.blocks(1)
    assert len(held) == 10
    assert not any(held[:8])
    assert all(held[8:])


def test_rows_left_of_the_window_may_be_anything() -> None:
    """Position 6 is the first that the query at 10 reads: rows before it are overwritten, in its own block too."""
    device = Device(replace(SLIDING, block_granularities=(4,)), keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: 10})
    device.rows(1, 0)[:] = 77
    device.rows(1, 1)[:2] = 77
    device.run({1: 1})
    device.run(None, 1)
    assert device.tokens[1] == stamp_continuation(PROMPT, 2, options=SLIDING)


def zero_a_block(device: Device) -> None:
    device.rows(1, 1)[:] = 0


def forget_a_block(device: Device) -> None:
    device.column(1)[1] = 0


def put_another_request_in_part_of_the_window(device: Device) -> None:
    device.column(1)[1] = device.column(2)[1]


def put_another_request_in_the_window(device: Device) -> None:
    device.column(1)[:3] = device.column(2)[:3]


def let_a_row_be_of_an_earlier_turn(device: Device) -> None:
    device.rows(1, 2)["position"][1] -= 4


def put_another_group_in_the_window(device: Device) -> None:
    device.rows(1, 1)[:] = device.rows(1, 1, 1)
    device.rows(1, 2)[:] = device.rows(1, 2, 1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (zero_a_block, r"position 7: expected the row of position 7, found token 0 of position 0 in block"),
        (forget_a_block, r"position 7: expected a row, found a hole"),
        (put_another_request_in_part_of_the_window, r"position 8: expected the row that continues position 7, found"),
        (put_another_request_in_the_window, r"position 10: expected the row its slot wrote, found token 9 of position"),
        (let_a_row_be_of_an_earlier_turn, r"position 9: expected the row that continues position 8, .* of position 5"),
        (put_another_group_in_the_window, r"position 10: expected the row its slot wrote, found token 8 of position"),
    ],
)
def test_damage_in_the_window_is_seen(damage: Callable[[Device], None], message: str) -> None:
    """Strict: a fault that names slot, group and position. Not strict: other tokens."""
    for strict in (True, False):
        device = Device(replace(TWO_WINDOWS, strict=strict), keeps_expired=True)
        device.add(1, PROMPT)
        device.add(2, OTHER_PROMPT)
        device.run({1: len(PROMPT), 2: len(PROMPT)})
        damage(device)
        if strict:
            with pytest.raises(StampFault, match=f"slot 0, group 'sliding-0', {message}"):
                device.run(None, 1)
        else:
            for _ in range(4):
                device.run(None, 1)
            assert device.tokens[1] != stamp_continuation(PROMPT, 5, options=TWO_WINDOWS)


@pytest.mark.parametrize("replayable", [False, True])
def test_a_row_that_only_an_earlier_query_of_the_chunk_reads_is_looked_at(replayable: bool) -> None:
    """The chunk [4, 10) does not sample, and the windows of what samples later begin after the damaged position 1."""
    for strict in (True, False):
        device = Device(replace(SLIDING, strict=strict, replayables=(replayable,)))
        device.add(1, PROMPT)
        device.run({1: 4})
        device.rows(1, 0)[1] = 0
        if strict:
            with pytest.raises(StampFault, match=r"slot 0, .* position 1: expected the row"):
                device.run({1: 6})
        else:
            device.run({1: 6})
            device.run({1: 1})
            device.run(None, 1)
            assert device.tokens[1] != stamp_continuation(PROMPT, 2, options=SLIDING)


def test_a_doubt_ends_with_the_owner_of_the_slot() -> None:
    """Not strict: the damaged request says other tokens to its end, the next one in its slot is served right."""
    device = Device(replace(SLIDING, strict=False))
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.rows(1, 2)[:] = 0
    device.run(None, 1)
    device.writer.release(1)
    device.add(2, PROMPT)
    device.run({2: len(PROMPT)})
    device.run(None, 2)
    assert device.slots[1] == device.slots[2]
    assert device.tokens[2] == stamp_continuation(PROMPT, 2, options=SLIDING) != device.tokens[1]


@pytest.mark.parametrize("window", [1, 2, 3, 4, 6])
def test_a_hit_needs_the_blocks_before_it_that_the_window_reads(window: int) -> None:
    """R4.3: 8 tokens are hit in blocks of 2; `ceil((W - 1) / 2)` blocks are shared, holes stand left of them."""
    options = StampOptions(group_kinds=("sliding",), block_granularities=(2,), windows=(window,))
    device = Device(options, keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    turn = [*PROMPT[:8], 70, 71, 72, 73]
    device.add(2, turn, shares=(1, 8))
    lookback = -(-(window - 1) // 2)
    assert device.writer.blocks(2) == [0] * (4 - lookback) + device.writer.blocks(1)[4 - lookback : 4]
    device.run({2: 3}, 1)
    device.run({2: 1}, 1)
    device.run(None, 2)
    assert device.tokens[2] == stamp_continuation(turn, 2, options=options)
    assert device.tokens[1] == stamp_continuation(PROMPT, 3, options=options)


def replaying(strict: bool = True) -> Device:
    """Request 1 computed its prompt; request 2 shares its first 8 tokens and replays the last 5 of those."""
    device = Device(replace(REPLAYED, strict=strict), keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.add(2, PROMPT, shares=(1, 8))
    return device


def test_a_hit_is_fed_again_for_what_is_replayable() -> None:
    """R3.7: positions [3, 8) are written in the replayable group alone; the shared blocks stay as they are."""
    device = replaying()
    plan = device.writer.plan({2: 2})
    before = [device.rows(1, column, group).copy() for group in (0, 1) for column in range(2)]
    device.carry_out(plan)
    after = [device.rows(1, column, group) for group in (0, 1) for column in range(2)]
    assert all((left == right).all() for left, right in zip(before, after, strict=True))
    regenerated = device.writer.blocks(2, 2)
    assert regenerated[0] == 0
    assert all(regenerated[1:])
    assert not set(regenerated[1:]) & set(device.writer.blocks(1, 2))
    assert device.rows(2, 1, 2)["position"].tolist() == [0, 3]
    assert device.rows(2, 2, 2)["token"].tolist() == PROMPT[4:6]
    device.run({2: 1}, 1)
    device.run(None, 1, 2)
    assert device.tokens[2] == stamp_continuation(PROMPT, 2, options=REPLAYED)
    assert device.tokens[1] == stamp_continuation(PROMPT, 3, options=REPLAYED)


def test_shared_rows_are_not_computed_again() -> None:
    """The plan forgets to say that tokens are only replayed: the full group would write where others read."""
    device = replaying()
    with pytest.raises(StampFault, match=r"slot 1, group 'full-0', position 3: .* not clean .* may share it"):
        device.carry_out(with_column(device.writer.plan({2: 2}), "replay_lengths", [0]))


def test_a_replay_that_is_too_short_leaves_rows_out() -> None:
    """Only the last two of five are fed again: the window of position 8 reaches back to position 4."""
    for strict in (True, False):
        device = replaying(strict)
        plan = device.writer.plan({2: 3})
        for name, values in {
            "prefix_lengths": [6],
            "input_lengths": [5],
            "replay_lengths": [2],
            "input_ids": PROMPT[6:11],
        }.items():
            plan = with_column(plan, name, values)
        if strict:
            with pytest.raises(StampFault, match="slot 1, group 'replayable-2', position 4: expected the row of posit"):
                device.carry_out(plan)
        else:
            device.carry_out(plan)
            device.run(None, 2)
            assert device.tokens[2] != stamp_continuation(PROMPT, 2, options=REPLAYED)


def test_a_replay_that_cannot_be_is_refused() -> None:
    """A row that only replays, and a replay for groups that cannot: the message says which slot."""
    device = replaying()
    plan = with_column(device.writer.plan({2: 2}), "replay_lengths", [7])
    with pytest.raises(StampFault, match="slot 1: 7 of 7 tokens are replayed"):
        device.carry_out(plan)
    device = Device(SLIDING)
    device.add(1, PROMPT)
    with pytest.raises(StampFault, match="slot 0 replays 3 tokens, but no group is replayable"):
        device.carry_out(with_column(device.writer.plan({1: 5}), "replay_lengths", [3]))


def test_a_hit_on_blocks_of_another_group_is_seen() -> None:
    """The slot wrote nothing yet that it could remember, and the rows continue each other: but not as here."""
    device = Device(TWO_WINDOWS, keeps_expired=True)
    device.add(1, PROMPT)
    device.run({1: 8})
    device.add(2, PROMPT, shares=(1, 8))
    device.rows(1, 1, 0)[:] = device.rows(1, 1, 1)
    with pytest.raises(StampFault, match="slot 1, group 'sliding-0', position 5: expected the row that continues"):
        device.run({2: 3})
