"""Stories of capacity: who is refused, who fits exactly, and what happens when a pool cannot hold what is running."""

import itertools

import pytest

from control_plane import CacheGroupConfig, CapacityModel, ConfigError, GroupKind, RequestRejected
from control_plane.testing.rounds import Rounds, small_config


def test_a_request_that_can_never_fit_is_refused_with_the_numbers(rounds: Rounds) -> None:
    """A1, R3.8: 40 + 1 tokens against a pool of 32: refused at submission, and it blocks nobody."""
    rounds.configure(pool=8)
    rounds.begin()
    with pytest.raises(RequestRejected, match=r"prompt_tokens=40, max_new_tokens=1, limit_tokens=32") as refused:
        rounds.submit(a=(40, 1))
    assert refused.value.numbers == {"prompt_tokens": 40, "max_new_tokens": 1, "limit_tokens": 32}
    rounds.submit(b=(4, 2))
    rounds.run_to_end()
    assert len(rounds.outputs["b"]) == 2
    assert rounds.scheduler.stats().stalled_rounds == 0


@pytest.mark.parametrize(
    ("decode_width", "overlap_depth", "mixed"), list(itertools.product((1, 3), (0, 1), (True, False)))
)
def test_accepted_if_and_only_if_it_runs_alone(decode_width: int, overlap_depth: int, mixed: bool) -> None:
    """A2, R3.8: every length around the bound either is refused or runs alone to completion; the bound is the edge."""
    pool, granularity = 6, 4
    settings = {
        "pool": pool,
        "batch": 2,
        "decode_width": decode_width,
        "overlap_depth": overlap_depth,
        "mixed": mixed,
        "budget_tokens": 16,
    }
    for max_new_tokens in (1, 9):
        accepted = []
        for prompt_tokens in range(1, pool * granularity + 3):
            story = Rounds(**settings)
            story.begin()
            try:
                story.submit(a=(prompt_tokens, max_new_tokens))
            except RequestRejected:
                continue
            accepted.append(prompt_tokens)
            story.run_to_end(limit=64)
            assert len(story.outputs["a"]) == max_new_tokens
        bound = story.scheduler.max_single_request_tokens
        assert accepted == list(range(1, bound - max(max_new_tokens, decode_width) + 1))
        if decode_width == 1:
            assert bound == pool * granularity


def test_the_largest_request_needs_the_whole_pool() -> None:
    """R3.8: one token above the bound would need a block that does not exist, with several groups and packings too."""
    for packing, blocks in itertools.product((1, 3), (1, 5, 8)):
        groups = tuple(CacheGroupConfig(f"g{g}", block_granularity=g, packing=packing) for g in (4, 2))
        config = small_config(pool=blocks, groups=groups)
        model = CapacityModel(config)
        bound = model.max_single_request_tokens()
        assert model.lcm_blocks(model.single_request_group_blocks(bound)) <= blocks
        assert model.lcm_blocks(model.single_request_group_blocks(bound + 1)) > blocks


def test_concurrent_blocks_are_never_below_single_blocks() -> None:
    """R3.8: a pool sized for one live request of L tokens admits every request the bound accepts."""
    for granularity, width, depth in itertools.product((1, 2, 4), (1, 3), (0, 1)):
        groups = (
            CacheGroupConfig("f", GroupKind.FULL, granularity),
            CacheGroupConfig("s", GroupKind.SLIDING, granularity, window=6),
            CacheGroupConfig("m", GroupKind.STATE, granularity),
        )
        model = CapacityModel(small_config(P=4, groups=groups, batch=1, decode_width=width, overlap_depth=depth))
        for tokens in range(1, 40):
            single = model.single_request_group_blocks(tokens)
            concurrent = model.concurrent_group_blocks(tokens, tokens)
            assert all(one <= many for one, many in zip(single, concurrent, strict=True))


def test_an_undeclared_output_is_capped_to_what_fits(rounds: Rounds) -> None:
    """R3.8: a prompt of 20 in a pool of 32 may say 12 tokens, and then its end is called length."""
    rounds.configure(pool=8)
    rounds.submit(a=20)
    rounds.run_to_end()
    assert len(rounds.outputs["a"]) == 12
    assert rounds.reasons["a"] == "length"


def test_a_declared_output_is_prepaid_and_an_undeclared_is_not(rounds: Rounds) -> None:
    """R3.4, R7.3: a prompt of 16 takes two pages more than it has if undeclared, and its whole output if declared."""
    rounds.configure(P=16, pool=20)
    rounds.submit(a=16, b=(16, 64))
    rounds.run()
    tables = rounds.scheduler._coordinator.tables
    assert [tables.held(slot, 0) for slot in (0, 1)] == [2, 5]


def test_a_decode_without_a_block_gives_way_and_loses_nothing(rounds: Rounds) -> None:
    """R5.2, R5.5, R7.1: both outgrow the pool: the younger gives way in the round in which nobody else can.

    It keeps its tokens, prefills again later, and says all it had to.
    """
    rounds.configure(pool=12, budget_tokens=16, batch=2)
    rounds.submit(a=20, b=20)
    rounds.run(8)
    rounds.expect("""
        1 | prefill a[0:16) | line held by a | waits b
        2 | prefill a[16:20) b[0:12) | line held by b
        3 | prefill b[12:20) | decode a
        4 | decode a b
        5 | decode a b
        6 | decode a b
        7 | decode b | a blocked 1 of 0 | retracts nobody while b is out
        8 | decode b | a blocked 1 of 0 | b blocked 1 of 0 | retracts a at 25 for a | evicts 1 | waits a
    """)
    rounds.run_to_end()
    for name, key in rounds.keys.items():
        assert rounds.outputs[name] == [key * 1000 + position for position in range(20, 48)]


def test_two_that_outgrow_the_pool_both_finish(rounds: Rounds) -> None:
    """A14 without a host tier: two of 20 + 24 in 12 blocks, small windows: no cycle, few retractions."""
    for overlap_depth, mixed in itertools.product((0, 1), (False, True)):
        story = Rounds(pool=12, safe_steps=4, overlap_depth=overlap_depth, mixed=mixed)
        story.submit(a=(20, 24), b=(20, 24))
        story.run_to_end()
        assert [len(tokens) for tokens in story.outputs.values()] == [24, 24]
        assert story.scheduler.stats().retractions <= 12


def test_a_configuration_that_cannot_work_names_every_problem() -> None:
    """I1, I2: fields out of range and granularities that do not divide are refused at start, all in one message."""
    wrong = small_config(budget_tokens=0, batch=-1, overlap_depth=2, pool=2**31, mixed=1)
    with pytest.raises(ConfigError) as refused:
        wrong.validate()
    for field in ("max_scheduled_tokens=0", "max_batch_size=-1", "overlap_depth=2", "device_blocks=21474", "mixed=1"):
        assert field in str(refused.value)
    uneven = small_config(P=8, groups=(CacheGroupConfig("full", block_granularity=3),))
    with pytest.raises(ConfigError, match="must divide prefix_granularity=8"):
        uneven.validate()
    narrow = small_config(budget_tokens=8, batch=8)
    with pytest.raises(ConfigError, match="must exceed a full decode step"):
        narrow.validate()


MIXES = {
    "full": (CacheGroupConfig("f", GroupKind.FULL, 4),),
    "full+sliding": (CacheGroupConfig("f", GroupKind.FULL, 4), CacheGroupConfig("s", GroupKind.SLIDING, 4, window=6)),
    "full+fine sliding, packed": (
        CacheGroupConfig("f", GroupKind.FULL, 4, packing=2),
        CacheGroupConfig("s", GroupKind.SLIDING, 2, packing=3, window=9),
    ),
    "full+state": (CacheGroupConfig("f", GroupKind.FULL, 4), CacheGroupConfig("m", GroupKind.STATE, 2)),
    "full+sliding+state": (
        CacheGroupConfig("f", GroupKind.FULL, 4),
        CacheGroupConfig("s", GroupKind.SLIDING, 4, window=6),
        CacheGroupConfig("m", GroupKind.STATE, 4),
    ),
    "full+replayable": (
        CacheGroupConfig("f", GroupKind.FULL, 4),
        CacheGroupConfig("r", GroupKind.SLIDING, 4, window=6, replayable=True),
    ),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("overlap_depth", "budget_tokens", "pool"), [(0, 18, 12), (1, 18, 8), (1, 42, 12)])
def test_every_mix_runs_what_it_accepts(mix: str, overlap_depth: int, budget_tokens: int, pool: int) -> None:
    """A2, R3.8 for every kind of group: whatever is accepted runs alone, cold, and again over its own cache."""
    settings = {"pool": pool, "batch": 2, "overlap_depth": overlap_depth, "budget_tokens": budget_tokens}
    story = Rounds(**settings, groups=MIXES[mix])
    bound = story.scheduler.max_single_request_tokens
    for max_new_tokens in (1, 9):
        for prompt_tokens in range(1, bound - max_new_tokens + 1):
            story = Rounds(**settings, groups=MIXES[mix])
            for name in "ab":
                story.submit(tokens={name: range(prompt_tokens)}, **{name: (prompt_tokens, max_new_tokens)})
                story.run_to_end(limit=4 * bound)
                assert len(story.outputs[name]) == max_new_tokens
            story.begin()
            with pytest.raises(RequestRejected):
                story.submit(c=(bound, max_new_tokens))
