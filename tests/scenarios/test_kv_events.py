"""Stories of what the cache tells the outside, and of clearing it (R4.11)."""

from control_plane import CacheGroupConfig
from control_plane.cache.prefix.hash_chain import HashChain
from control_plane.cache.prefix.kv_events import KvRemoved, KvStored
from control_plane.messages.columns import pack, view
from control_plane.testing.rounds import Rounds


def _digests(tokens: list[int]) -> list[bytes]:
    chain = HashChain(namespace="", prefix_granularity=4)
    chain.extend(view(pack(tokens)), len(tokens))
    return chain.digests


def test_pages_are_told_once_when_stored_and_once_when_removed(rounds: Rounds) -> None:
    """Each page with the one before it; an eviction takes the last page first and says so."""
    rounds.configure(kv_events=True, pool=4)
    prompt = list(range(12))
    rounds.submit(tokens={"a": prompt}, a=(12, 1))
    rounds.run_to_end()
    one, two, three = _digests(prompt)
    assert rounds.scheduler.drain_kv_events() == [KvStored(one, None), KvStored(two, one), KvStored(three, two)]
    assert rounds.scheduler.drain_kv_events() == []
    rounds.submit(b=(5, 1))
    rounds.run()
    assert rounds.scheduler.drain_kv_events() == [KvRemoved(three)]


def test_what_came_and_went_between_two_drains_is_not_mentioned(rounds: Rounds) -> None:
    """Net: pages that were stored and evicted again since the last drain leave no event."""
    rounds.configure(kv_events=True, pool=4)
    prompt = list(range(12))
    rounds.submit(tokens={"a": prompt}, a=(12, 1))
    rounds.run_to_end()
    rounds.submit(b=(13, 1))
    rounds.run_to_end()
    stored = [event.digest for event in rounds.scheduler.drain_kv_events()]
    assert not set(stored) & set(_digests(prompt))
    assert len(stored) == 3


def test_a_page_of_several_groups_counts_when_all_hold_it(rounds: Rounds) -> None:
    """Two full groups of different granularity: one event a page, not one a block."""
    groups = (CacheGroupConfig("fine", block_granularity=2), CacheGroupConfig("coarse", block_granularity=4))
    rounds.configure(kv_events=True, groups=groups)
    prompt = list(range(8))
    rounds.submit(tokens={"a": prompt}, a=(8, 1))
    rounds.run_to_end()
    assert [event.digest for event in rounds.scheduler.drain_kv_events()] == _digests(prompt)


def test_the_cache_is_not_cleared_under_anybody(rounds: Rounds) -> None:
    """Clearing refuses while a request holds pages, and empties the pool when none does."""
    rounds.submit(a=(12, 4))
    rounds.run(2)
    assert not rounds.scheduler.clear_cache()
    assert rounds.scheduler.stats().free_blocks < 64
    rounds.run_to_end()
    assert rounds.scheduler.clear_cache()
    assert rounds.scheduler.stats().free_blocks == 64
