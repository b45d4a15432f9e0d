"""Stories of sliding windows, state snapshots and bounded replay (R3.4, R3.6, R3.7, R4.3 to R4.6, R4.8)."""

import itertools
from typing import Any

import pytest

from control_plane import CacheGroupConfig, ConfigError, GroupKind
from control_plane.messages.columns import count, view
from control_plane.testing.rounds import Rounds, small_config


def _full(granularity: int = 4) -> CacheGroupConfig:
    return CacheGroupConfig("full", GroupKind.FULL, granularity)


def _sliding(window: int, granularity: int = 4, *, replayable: bool = False) -> CacheGroupConfig:
    return CacheGroupConfig("sliding", GroupKind.SLIDING, granularity, window=window, replayable=replayable)


def _state(granularity: int = 4) -> CacheGroupConfig:
    return CacheGroupConfig("state", GroupKind.STATE, granularity)


def _live(story: Rounds, group: int, slot: int = 0) -> list[int]:
    """Table rows of a slot that have a block."""
    return [row for row, _ in story.scheduler._coordinator.tables.live_blocks(slot, group)]


def _checkpoints(story: Rounds) -> list[list[int]]:
    return [
        view(plan.forward.checkpoints).tolist() for plan in story.plans if plan.forward and plan.forward.num_extends
    ]


def test_a_finishing_extent_is_one_forward_with_a_checkpoint() -> None:
    """R3.6, the seed's example: P=128, a hit of 50,432 and an extent of 868: one chunk, a checkpoint at 51,200."""
    story = Rounds(P=128, pool=2000, budget_tokens=60_000, groups=(_full(128), _state(128)), batch=4)
    prompt = list(range(51_300))
    story.submit(tokens={"a": prompt[:50_440]}, a=(50_440, 1))
    story.run_to_end()
    story.skip()
    story.submit(tokens={"b": prompt}, b=(51_300, 1))
    story.run()
    story.expect("""
        2 | prefill b[50432:51300) | hit b 50432
    """)
    assert _checkpoints(story)[-1] == [51_200]
    # The input snapshot, the checkpoint, the final state and the growth block; holes between.
    assert _live(story, 1) == [393, 399, 400, 401]


def test_with_less_budget_the_extent_is_cut_at_a_page() -> None:
    """R3.6, the seed's example: with 800 tokens of budget left it is 768, then 100."""
    story = Rounds(P=128, pool=2000, budget_tokens=800, groups=(_full(128), _state(128)), batch=4)
    prompt = list(range(1636))
    story.submit(tokens={"a": prompt[:776]}, a=(776, 1))
    story.run_to_end()
    story.skip()
    story.submit(tokens={"b": prompt}, b=(1636, 1))
    story.run(2)
    story.expect("""
        2 | prefill b[768:1536) | hit b 768 | line held by b
        3 | prefill b[1536:1636)
    """)
    assert _checkpoints(story)[-2:] == [[0], [0]]


def test_state_chunks_end_on_pages(rounds: Rounds) -> None:
    """R3.3: P=64, budget 100, prompt 300, with a state group: 64 four times, then 44."""
    rounds.configure(P=64, budget_tokens=100, groups=(_full(64), _state(64)), pool=100, mixed=False)
    rounds.submit(a=(300, 1))
    rounds.run_to_end()
    lengths = [count(plan.forward.input_ids) for plan in rounds.plans if plan.forward]
    assert lengths == [64, 64, 64, 64, 44]


def test_the_second_request_promotes_and_the_third_hits(rounds: Rounds) -> None:
    """R4.5: a shared system prompt of 40 tokens, different turns: the second is cut where the first one's match ended.

    The snapshot made there is published as promoted, so the third request starts behind the whole system prompt.
    """
    rounds.configure(groups=(_full(), _state()), pool=200, budget_tokens=64, mixed=False)
    system = list(range(40))
    for name, turn in (("a", 100), ("b", 200), ("c", 300)):
        rounds.submit(tokens={name: [*system, *range(turn, turn + 10)]}, **{name: (50, 1)})
        rounds.run_to_end()
    rounds.expect("""
        1 | prefill a[0:50)
        2 | prefill b[0:40) | line held by b
        3 | prefill b[40:50)
        4 | prefill c[40:50) | hit c 40
    """)


def test_a_boundary_is_pending_until_it_is_published() -> None:
    """R3.3: `b` reaches the boundary at 40 with its first chunk; the chunk behind publishes it, and ends on a page too.

    Only behind that one chunks take the whole budget of 22 tokens.
    """
    story = Rounds(groups=(_full(), _sliding(8)), pool=300, budget_tokens=22, mixed=False)
    system = list(range(40))
    story.submit(tokens={"a": [*system, *range(100, 160)]}, a=(100, 1))
    story.run_to_end()
    story.skip()
    story.submit(tokens={"b": [*system, *range(200, 260)]}, b=(100, 1))
    story.run_to_end()
    story.expect("""
        6 | prefill b[20:40) | hit b 20 | line held by b
        7 | prefill b[40:60) | line held by b
        8 | prefill b[60:82) | line held by b
        9 | prefill b[82:100)
    """)


def test_a_sliding_group_holds_its_window_and_a_chunk(rounds: Rounds) -> None:
    """A5: W=8 with 7 blocks to spare: a prompt of 128 is admitted at once and never holds more of that group."""
    groups = (_full(), _sliding(8))
    rounds.configure(groups=groups, pool=71, budget_tokens=16, batch=2)
    rounds.submit(a=(128, 64))
    rounds.run()
    # The full group covers prompt and output, the sliding one the chunk.
    tables = rounds.scheduler._coordinator.tables
    assert tables.held(0, 0) == 48
    assert tables.held(0, 1) == 4
    for _ in range(75):
        assert len(_live(rounds, 1)) <= 7
        rounds.run()
    assert len(rounds.outputs["a"]) == 64


@pytest.mark.parametrize("window", [1, 3, 7, 8, 9])
def test_windows_keep_what_a_hit_reads(window: int) -> None:
    """I2, C8, C9: whatever the window, the last aligned boundary of a prompt can be hit again, with its lookback."""
    story = Rounds(groups=(_full(), _sliding(window)), pool=200)
    prompt = list(range(40))
    story.submit(tokens={"a": [*prompt, 77]}, a=(41, 3))
    story.run_to_end()
    story.skip()
    story.submit(tokens={"b": [*prompt, 99]}, b=(41, 3))
    story.run()
    assert "hit b 40" in story.history()
    assert _live(story, 1) == list(range(10 - -(-(window - 1) // 4), 11))


def test_the_hit_is_what_all_groups_agree_on(rounds: Rounds) -> None:
    """C5: the full group holds 44 tokens of the prompt, a snapshot exists at 40 only: the hit is 40."""
    rounds.configure(groups=(_full(), _state()), pool=200)
    prompt = list(range(60))
    rounds.submit(tokens={"a": prompt[:43]}, a=(43, 6))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"b": [*prompt[:43], *rounds.outputs["a"], 7]}, b=(50, 1))
    rounds.run()
    assert "hit b 40" in rounds.history()


def test_positions_use_each_groups_own_granularity() -> None:
    """C6: P=12 with granularities 4, 12 and 2: resent prompts hit at the shared pages and the books add up."""
    groups = (_full(4), _state(12), _sliding(5, 2))
    for shared in (24, 36, 48):
        story = Rounds(P=12, groups=groups, pool=300)
        prompt = list(range(60))
        story.submit(tokens={"a": prompt[:shared]}, a=(shared, 1))
        story.run_to_end()
        story.submit(tokens={"b": prompt}, b=(60, 4))
        story.run_to_end()
        assert f"hit b {shared}" in story.history()


def test_a_replayable_window_is_fed_again(rounds: Rounds) -> None:
    """R3.7: after a hit at 16 the window of 6 is fed again; the table of that group begins where the replay does."""
    rounds.configure(groups=(_full(), _sliding(6, replayable=True)), pool=100, budget_tokens=32, mixed=False)
    prompt = list(range(20))
    rounds.submit(tokens={"a": prompt}, a=(20, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"b": [*prompt[:18], 90, 91, 92, 93, 94, 95]}, b=(24, 1))
    rounds.run()
    batch = rounds.plans[-1].forward
    assert batch is not None
    assert view(batch.replay_lengths).tolist() == [6]
    assert view(batch.prefix_lengths).tolist() == [10]
    assert view(batch.input_lengths).tolist() == [14]
    assert _live(rounds, 1)[0] == 2


def test_no_final_chunk_is_shorter_than_the_replayed_window(rounds: Rounds) -> None:
    """R3.7: 34 tokens with a budget of 16 and W=6: 16, then 12 so that 6 remain, then 6."""
    rounds.configure(groups=(_full(), _sliding(6, replayable=True)), budget_tokens=16, batch=2, mixed=False)
    rounds.submit(a=(34, 1))
    rounds.run_to_end()
    lengths = [count(plan.forward.input_ids) for plan in rounds.plans if plan.forward]
    assert lengths == [16, 12, 6]


@pytest.mark.parametrize(("window", "granularity"), list(itertools.product(range(1, 10), (4, 8))))
def test_every_accepted_replay_configuration_makes_progress(window: int, granularity: int) -> None:
    """A10: the smallest budget that is accepted serves every hit position and a promotion ahead."""
    groups = (_full(granularity), _sliding(window, granularity, replayable=True))
    least = window + max(window, granularity)
    with pytest.raises(ConfigError, match="smallest prefill chunk"):
        small_config(P=granularity, groups=groups, batch=1, budget_tokens=least).validate()
    story = Rounds(P=granularity, groups=groups, batch=1, budget_tokens=least + 1, pool=200)
    prompt = list(range(60))
    for length in range(1, 60, 5):
        story.submit(tokens={f"r{length}": prompt[:length]}, **{f"r{length}": (length, 2)})
        story.run_to_end()
    assert all(len(tokens) == 2 for tokens in story.outputs.values())


def test_the_growth_block_is_there_for_the_first_crossing(rounds: Rounds) -> None:
    """R3.4: a completing chunk on a decoding role leaves a state group a block beyond its final state."""
    rounds.configure(groups=(_full(), _state()), pool=60)
    rounds.submit(a=(10, 6))
    rounds.run()
    assert _live(rounds, 1) == [1, 2, 3]


def test_sliding_growth_is_prepaid_beside_others_only() -> None:
    """R3.4: a request alone prepays no sliding growth; beside another one, what its hit or its prompt cannot fund."""
    settings: dict[str, Any] = {"groups": (_full(), _sliding(17)), "pool": 300, "budget_tokens": 16, "mixed": False}
    alone = Rounds(**settings)
    alone.submit(a=(64, 4))
    alone.run()
    beside = Rounds(**settings)
    beside.submit(r=(8, 60))
    beside.run(2)
    beside.submit(a=(64, 4))
    beside.run()
    held = [story.scheduler._coordinator.tables.held(slot, 1) for story, slot in ((alone, 0), (beside, 1))]
    assert held == [4, 8]


def test_configurations_of_groups_that_contradict_are_refused() -> None:
    """I1, R3.7: windows where there are none, replay without a window, and replay beside state."""
    with pytest.raises(ConfigError, match=r"window \(of a sliding group\)=0 must be between 1"):
        small_config(groups=(_sliding(0),)).validate()
    with pytest.raises(ConfigError, match=r"window \(of a full group\)=4 must be between 0 and 0"):
        small_config(groups=(CacheGroupConfig("full", block_granularity=4, window=4),)).validate()
    with pytest.raises(ConfigError, match="cannot be combined with a state group"):
        small_config(groups=(_state(), _sliding(4, replayable=True))).validate()


def test_the_windows_of_the_last_boundary_outlive_those_inside(rounds: Rounds) -> None:
    """C7: two sliding blocks must go: they are of chunk ends inside the prompt, and its end can still be hit."""
    rounds.configure(groups=(_full(), _sliding(8)), pool=22, budget_tokens=16, mixed=False)
    prompt = list(range(41))
    rounds.submit(tokens={"a": prompt}, a=(41, 1))
    rounds.run_to_end()
    rounds.submit(b=(12, 1))
    rounds.run_to_end()
    assert "evicts" in rounds.history()
    rounds.skip()
    rounds.submit(tokens={"c": prompt}, c=(41, 1))
    rounds.run()
    assert "hit c 40" in rounds.history()


def test_banked_growth_covers_the_step_in_flight() -> None:
    """A9: states of granularity 4, depth 1, 4 + 20 tokens three times in a pool for two: all end, every row owned."""
    story = Rounds(groups=(_full(), _state()), overlap_depth=1, pool=20, batch=3)
    story.submit(a=(4, 20), b=(4, 20), c=(4, 20))
    story.run_to_end()
    assert [len(tokens) for tokens in story.outputs.values()] == [20, 20, 20]


def test_parents_shared_by_groups_are_counted_once(rounds: Rounds) -> None:
    """J4: three groups over one pool of 20 parents: used, cached and free add up to 20 in every round."""
    groups = (
        CacheGroupConfig("full", GroupKind.FULL, 4, packing=2),
        CacheGroupConfig("sliding", GroupKind.SLIDING, 2, packing=4, window=6),
        CacheGroupConfig("state", GroupKind.STATE, 4, packing=3),
    )
    rounds.configure(groups=groups, pool=20, budget_tokens=24)
    rounds.submit(a=(20, 6), b=(9, 8), c=(14, 5))
    for _ in range(40):
        rounds.run()
        stats = rounds.scheduler.stats()
        assert stats.used_blocks + stats.cached_blocks + stats.free_blocks == 20
    assert not rounds.scheduler.requests
    assert rounds.scheduler.stats().used_blocks == 0


@pytest.mark.parametrize("granularity", [1, 2, 4, 8])
def test_reserves_reach_past_the_context(granularity: int) -> None:
    """R3.4: a prompt that ends just before the context's end still banks its growth block, and runs to the end."""
    for context in range(16, 26):
        groups = (_full(granularity), _state(granularity))
        story = Rounds(P=8, groups=groups, pool=100, max_context_tokens=context, budget_tokens=64)
        story.submit(a=context - 1, b=context - 2, c=context - 8)
        story.run_to_end()
        assert [len(tokens) for tokens in story.outputs.values()] == [1, 2, 8]


def test_a_budget_that_cannot_reach_a_promotion_boundary_is_refused() -> None:
    """R3.3: beside a full group a sliding one may have to be promoted, in chunks that end on pages: a page must fit."""
    groups = (_full(), _sliding(2))
    with pytest.raises(ConfigError, match=r"smallest prefill chunk \(4 tokens\)"):
        small_config(groups=groups, batch=1, budget_tokens=4).validate()
    small_config(groups=groups, batch=1, budget_tokens=5).validate()
    small_config(groups=(_sliding(2),), batch=1, budget_tokens=2).validate()
