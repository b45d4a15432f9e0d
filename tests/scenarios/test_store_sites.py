"""Stories of what goes to the host, when, and what keeps its blocks intact until it is there (R5.3)."""

import pytest

from control_plane import CacheGroupConfig, GroupKind
from control_plane.config import Role
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper

FULL = CacheGroupConfig("full", GroupKind.FULL, 4)
SLIDING = CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=6)
STATE = CacheGroupConfig("state", GroupKind.STATE, 4)


def test_only_a_retraction_stores_without_holding(rounds: Rounds) -> None:
    """R5.3: pages of prompts and those at an end are pinned until they are stored; a victim's are not: they are given
    away in the same round."""
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2)
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run_to_end()
    assert "6 | decode b" in rounds.history()
    assert "stores 1 of a | retracts a at 25" in rounds.history()
    assert paper.stores == [
        "2 pinned-until-ack 5 full",  # the prompt of a
        "2 pinned-until-ack 5 full",  # and of b
        "6 stream-ordered 1 full",  # what a had said since, as it gives way
        "25 pinned-until-ack 5 full",  # b ends
        "45 pinned-until-ack 4 full",  # a ends
    ]


def test_what_a_victim_gives_is_granted_in_the_same_plan(rounds: Rounds) -> None:
    """E1, R5.3: the plan that stores a victim's block gives it to another request: read before it is cleared.

    That the copy wins the race is the data plane's part; here the plan's order says which must.
    """
    Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2)
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run(6)
    given_away = {block for store in rounds.plans[5].stores for block in view(store.sources).tolist()}
    assert given_away
    rounds.run_to_end()
    cleared = [{block for each in plan.zero for block in view(each.blocks).tolist()} for plan in rounds.plans]
    assert cleared[5], "b got a block of a's in the round that took it"
    assert given_away & set().union(*cleared[5:])


def test_a_pinned_source_is_nobody_elses_before_it_is_stored(rounds: Rounds) -> None:
    """R5.3: a is over, but its four pages are neither evicted nor given away: b waits for them, not for a victim."""
    paper = Paper(rounds)
    rounds.configure(pool=8, host_blocks=20, keeps_stores=True, batch=2)
    rounds.submit(a=(17, 1))
    rounds.run(3)
    assert not rounds.scheduler.requests
    assert rounds.scheduler.stats().used_blocks == 4
    rounds.submit(b=(24, 1))
    rounds.run(2)
    rounds.end_stores()
    rounds.run()
    rounds.expect("""
        1 | prefill a[0:17)
        2
        - | b blocked 7 of 4 | retracts nobody while 0 loads and 1 stores are out | waits b
        - | waits b
        3 | prefill b[0:24) | evicts 3
    """)
    assert paper.stores == ["2 pinned-until-ack 4 full"]


def test_only_landed_rows_are_stored(rounds: Rounds) -> None:
    """D3: depth 1, 7 + 9 tokens: the prompt's page goes when its forward landed, two of the output's at the end.

    The last token is never fed, so its row is not computed and the fourth page is not complete.
    """
    paper = Paper(rounds)  # compares every stored row with those that landed
    rounds.configure(host_blocks=20, overlap_depth=1)
    rounds.submit(a=(7, 9))
    rounds.run_to_end()
    assert paper.stores == ["3 pinned-until-ack 1 full", "10 pinned-until-ack 2 full"]
    assert rounds.scheduler.stats().host_used_blocks == 3


@pytest.mark.parametrize(("overlap_depth", "first_store"), [(0, 2), (1, 3)])
def test_a_chunk_goes_to_the_host_when_it_has_landed(overlap_depth: int, first_store: int) -> None:
    """D3: with one more round out the store of a chunk's pages comes one round later, not before they are computed."""
    story = Rounds(host_blocks=20, overlap_depth=overlap_depth, budget_tokens=9, mixed=False)
    paper = Paper(story)
    story.submit(a=(20, 3))
    story.run_to_end()
    assert paper.stores == [f"{first_store + i} pinned-until-ack {n} full" for i, n in enumerate((2, 2, 1))]


def test_a_failed_chunk_is_not_stored(rounds: Rounds) -> None:
    """D3: depth 1: the second chunk's pages are cached by the third before their forward is known to have failed."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=20, overlap_depth=1, budget_tokens=9, mixed=False, fail={2})
    rounds.submit(a=(20, 3))
    rounds.run_to_end()
    assert rounds.reasons["a"] == "error"
    assert paper.stores == ["3 pinned-until-ack 2 full"]


def test_a_window_is_stored_as_far_as_a_hit_reads(rounds: Rounds) -> None:
    """R5.3 with a sliding group of W=6: behind each chunk its two last blocks; a hit at 36 loads the two before it."""
    paper = Paper(rounds)
    rounds.configure(groups=(FULL, SLIDING), pool=40, host_blocks=40, budget_tokens=16, batch=2)
    prompt = list(range(38))
    rounds.submit(tokens={"a": prompt}, a=(38, 1))
    rounds.run_to_end()
    assert [line for line in paper.stores if "sliding" in line] == [
        "2 pinned-until-ack 2 sliding",
        "3 pinned-until-ack 2 sliding",
        "4 pinned-until-ack 1 sliding",  # the one before it has been stored already
    ]
    rounds.scheduler.clear_cache()
    rounds.submit(tokens={"b": [*prompt[:36], 97, 98, 99]}, b=(39, 2))
    rounds.run_to_end()
    assert "hit b 36 | loads 11 for b" in rounds.history()
    assert paper.loads == ["5 9 full", "5 2 sliding"]


def test_a_snapshot_is_stored_where_it_is_worth_it(rounds: Rounds) -> None:
    """R5.3, R4.6 with a state group: of a prompt of 38 in three chunks only the snapshot at its last page is stored.

    The next prompt loads all pages and this one snapshot.
    """
    paper = Paper(rounds)
    rounds.configure(groups=(FULL, STATE), pool=40, host_blocks=40, budget_tokens=16, batch=2)
    prompt = list(range(38))
    rounds.submit(tokens={"a": prompt}, a=(38, 6))
    rounds.run_to_end()
    assert [line for line in paper.stores if "state" in line] == ["4 pinned-until-ack 1 state"]
    rounds.scheduler.clear_cache()
    rounds.submit(tokens={"b": [*prompt[:36], 97, 98, 99]}, b=(39, 2))
    rounds.run_to_end()
    assert paper.loads == ["10 9 full", "10 1 state"]


def test_a_replayed_window_is_never_stored(rounds: Rounds) -> None:
    """R3.7: a replayable group is fed again after a hit, so there is nothing of it to keep."""
    replayable = CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=6, replayable=True)
    paper = Paper(rounds)
    rounds.configure(groups=(FULL, replayable), pool=40, host_blocks=40, budget_tokens=16, batch=2)
    prompt = list(range(38))
    rounds.submit(tokens={"a": prompt}, a=(38, 6))
    rounds.run_to_end()
    rounds.scheduler.clear_cache()
    rounds.submit(tokens={"b": [*prompt[:36], 97, 98, 99]}, b=(39, 2))
    rounds.run_to_end()
    assert "prefill b[36:39) replaying 6 | hit b 36" in rounds.history()
    assert not [line for line in [*paper.stores, *paper.loads] if "sliding" in line]


@pytest.mark.parametrize(
    ("role", "stores"),
    [
        (Role.FUSED, ["2 pinned-until-ack 3 full", "7 pinned-until-ack 1 full"]),
        (Role.PREFILL, ["2 pinned-until-ack 3 full"]),
        (Role.DECODE, []),
    ],
)
def test_each_role_stores_what_it_computes_for_others(role: Role, stores: list[str]) -> None:
    """R5.3: a prompt is stored where it is computed, an output where the whole request is served."""
    story = Rounds(host_blocks=20, role=role)
    paper = Paper(story)
    story.submit(a=(13, 6))
    story.run_to_end()
    assert paper.stores == stores


def test_full_host_takes_the_front_of_what_is_stored(rounds: Rounds) -> None:
    """E3: a host of 3 blocks stores the first three pages of five; what does not fit is not remembered as stored."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=3, pool=10)
    prompt = list(range(20))
    rounds.submit(tokens={"a": [*prompt, 77]}, a=(21, 1))
    rounds.run_to_end()
    assert paper.stores == ["2 pinned-until-ack 3 full"]
    rounds.scheduler.clear_cache()
    rounds.skip()
    rounds.submit(tokens={"b": [*prompt, 88]}, b=(21, 2))
    rounds.run_to_end()
    rounds.expect("""
        3 | prefill b[12:21) | hit b 12 | loads 3 for b
        4 | decode b
    """)
