"""The replayable variant: a first layer's window is regenerated from tokens that are fed again (R3.7)."""

import numpy as np
import pytest

from control_plane.messages import ForwardBatch
from control_plane.messages.columns import pack
from data_plane.batch.replay import split_replay
from data_plane.batch.rows import Rows
from data_plane.model.grouped_runner import GroupedRunner
from data_plane.model.recurrent import SHAPES, RecurrentDecoder
from tests.models.dense import greedy
from tests.models.group_driver import GroupDriver, group_of
from tests.models.test_recurrent import prompts

PAGE = 16
NEW_TOKENS = 8
WINDOW = 32
DECODER = RecurrentDecoder(SHAPES["hybrid-replay"])


def driver_of(*, granularity: int = PAGE, seed: int = 0) -> GroupDriver:
    """A fresh runner over the same weights."""
    runner = GroupedRunner(DECODER, name="hybrid-replay", block_granularity=granularity)
    return GroupDriver(runner, prefix_granularity=PAGE, seed=seed)


@pytest.mark.parametrize("granularity", [16, 4, 1])
def test_random_chunks_write_what_the_dense_model_writes(granularity: int) -> None:
    """Chunks shorter and longer than the window; blocks left of it are given away while the request runs."""
    driver = driver_of(granularity=granularity, seed=granularity)
    asked = prompts(1, 1, 3, 31, 33, 50, 120)
    slots = [driver.start(prompt) for prompt in asked]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=60, most_chunk=50)
    for slot, prompt in zip(slots, asked, strict=True):
        assert outputs[slot] == greedy(DECODER, prompt, outputs[slot]), f"{len(prompt)} tokens"
    assert driver.most_held[1] <= (WINDOW + 50) // granularity + 2


@pytest.mark.parametrize("granularity", [16, 4])
@pytest.mark.parametrize("hit", [16, 32, 64])
def test_after_a_hit_the_window_is_fed_again(granularity: int, hit: int) -> None:
    """Hits shorter than, as long as and longer than the window; shared blocks are not written (the driver looks)."""
    driver = driver_of(granularity=granularity)
    (prefix, ending_a, ending_b, ending_c) = prompts(2, hit, 13, 1, 70)
    a = driver.start(prefix + ending_a)
    driver.run({a: hit + 13})
    b, c = driver.start(prefix + ending_b), driver.start(prefix + ending_c)
    for slot in (b, c):
        driver.share(slot, owner=a, tokens=hit)
        assert driver.requests[slot].replay == min(WINDOW, hit)
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=90, most_chunk=70)
    for slot, ending in ((a, ending_a), (b, ending_b), (c, ending_c)):
        assert outputs[slot] == greedy(DECODER, prefix + ending, outputs[slot])


def test_the_rows_fed_again_are_the_rows_that_were() -> None:
    """Token and position decide: the owner's window before the hit, in blocks of its own."""
    driver = driver_of(granularity=4)
    (prefix, ending) = prompts(3, 48, 5)
    a = driver.start(prefix + ending)
    driver.run({a: 48})
    b = driver.start(prefix + ending)
    driver.share(b, owner=a, tokens=48)
    driver.run({b: 5})
    columns = slice((48 - WINDOW) // 4, 48 // 4)
    rows = [driver.blocks(1)[driver.tables[1][slot, columns]].view(np.float32) for slot in (a, b)]
    assert np.abs(rows[0]).max() > 0.1
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-4, atol=1e-5)
    assert not set(driver.tables[1][a, columns].tolist()) & set(driver.tables[1][b, columns].tolist())
    assert not driver.tables[1][b, : columns.start].any()


def test_the_output_depends_on_the_window() -> None:
    """Without the rows before the hit a request writes something else: the tests above would notice."""
    driver = driver_of()
    (prefix, ending) = prompts(4, 64, 5)
    a = driver.start(prefix + ending)
    driver.run({a: 64})
    held = [block for column, block in driver.requests[a].held[1].items() if column >= 2]
    driver.blocks(1)[held] = 0
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=90, most_chunk=5)
    assert outputs[a] != greedy(DECODER, prefix + ending, outputs[a])


def test_a_batch_is_taken_apart_by_what_it_replays() -> None:
    """Two of three extends replay; the decode and the third extend are only computed. Losses stay with their rows."""
    rows = Rows(
        ForwardBatch(
            keys=pack([1, 2, 3, 4]),
            slots=pack([7, 5, 3, 1]),
            num_extends=3,
            input_lengths=pack([6, 2, 5, 1]),
            prefix_lengths=pack([12, 0, 16, 9]),
            prefill_lengths=pack([18, 40, 30]),
            replay_lengths=pack([4, 0, 2]),
            checkpoints=pack([0, 0, 0]),
            input_ids=pack([*range(10, 16), *range(20, 22), *range(30, 35)]),
            decode_width=1,
        )
    )
    rows.lost = np.array([False, False, True, False])
    replayed, computed = split_replay(rows)
    assert replayed is not None
    assert replayed.slots.tolist() == [7, 3]
    assert (replayed.num_extends, replayed.count) == (2, 2)
    assert replayed.prefix_lengths.tolist() == [12, 16]
    assert replayed.input_ids.tolist() == [10, 11, 12, 13, 30, 31]
    assert replayed.lost.tolist() == [False, True]
    assert computed.prefix_lengths.tolist() == [16, 0, 18, 9]
    assert computed.input_lengths.tolist() == [2, 2, 3, 1]
    assert computed.input_ids.tolist() == [14, 15, 20, 21, 32, 33, 34]
    assert computed.samples.tolist() == rows.samples.tolist() == [True, False, False, True]
    assert computed.lost.tolist() == [False, False, True, False]
    assert split_replay(computed) == (None, computed)


def test_the_groups_of_the_replayable_variant() -> None:
    """The first layer alone is replayable, with its window; the rest is kept."""
    runner = driver_of().runner
    full, sliding = group_of(runner, "full"), group_of(runner, "sliding")
    assert (full.layers, full.replayable) == ((1, 2), False)
    assert (sliding.layers, sliding.window, sliding.replayable) == ((0,), WINDOW, True)
