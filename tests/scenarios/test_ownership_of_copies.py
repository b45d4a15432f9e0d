"""Stories of blocks that copies hold: given back once, when the copy has ended, whoever left meanwhile (B)."""

from collections import Counter

import pytest

from control_plane import CacheGroupConfig, GroupKind
from control_plane.config import Role
from control_plane.messages import Abort, Event, LoadBackDone
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper

PREFIX = list(range(16))


def a_load_out(**config: int) -> tuple[Rounds, LoadBackDone]:
    """Round 3 is out: `a` loads four pages. The story, and what will be said of the load."""
    story = Rounds(host_blocks=40, **config)
    Paper(story)
    story.submit(tokens={"p": [*PREFIX, 77]}, p=(17, 1))
    story.run_to_end()
    assert story.scheduler.clear_cache()
    story.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    story.run()
    (load,) = story.plans[-1].load_backs
    return story, LoadBackDone(load.op)


def test_aborted_victims_leave_nothing_on_the_host() -> None:
    """B2: 20 times a request is thrown out and leaves while it waits, with a host of 8 blocks: none is its own then.

    What it stored is cache, hence the next one finds room; it does not come back.
    """
    story = Rounds(pool=12, host_blocks=8, safe_steps=1, batch=2)
    paper = Paper(story)
    for turn in range(20):
        victim, other = f"v{turn}", f"o{turn}"
        story.submit(**{victim: (10, 30), other: (10, 38)})
        story.run(16)
        assert f"retracts {victim} at 25" in story.history()
        stored = len(paper.stores)
        assert "stream-ordered 4 full" in paper.stores[-1]
        story.abort(victim)
        story.run(2)
        assert not list(story.scheduler._coordinator.host.being_stored_for(story.keys[victim]))
        assert story.scheduler.stats().waiting == 0
        assert len(paper.stores) == stored
        story.abort(other)
        story.run()
    assert story.scheduler.stats().host_used_blocks == 8
    assert story.scheduler.clear_cache(also_host=True)
    assert story.scheduler.stats().host_used_blocks == 0
    assert set(story.reasons.values()) == {"abort"}


def test_an_abort_waits_for_the_load_that_is_out() -> None:
    """B3: the client of a leaves: the blocks that its load writes are held until that has ended, and the others go."""
    story, done = a_load_out(pool=7, batch=2, overlap_depth=1)
    story.deliver(Abort(story.keys["a"]))
    assert not story.scheduler.requests
    assert story.scheduler.stats().used_blocks == 4
    story.submit(b=(17, 1))
    story.run()
    assert "b blocked 5 of 3" in story.history()
    story.deliver(done)
    story.run_to_end()
    assert story.reasons == {"p": "length", "a": "abort", "b": "length"}
    assert story.outputs["a"] == []
    assert "a[" not in story.history().partition("loads 4 for a")[2]


@pytest.mark.parametrize("abort_first", [True, False])
@pytest.mark.parametrize("success", [True, False])
def test_a_load_ends_as_its_reader_leaves(abort_first: bool, success: bool) -> None:
    """B3: abort and load-done in one batch, in either order: all blocks are given back, once; one end for the client.

    What was loaded stays in the cache, if it was; said again the load-done changes nothing.
    """
    story, done = a_load_out()
    events: list[Event] = [Abort(story.keys["a"]), LoadBackDone(done.op, success=success)]
    story.deliver(*(events if abort_first else reversed(events)))
    stats = story.scheduler.stats()
    assert (stats.used_blocks, stats.copies_out, stats.cached_blocks) == (0, 0, 4 if success else 0)
    story.deliver(done)
    story.run_to_end()
    assert story.scheduler.stats().used_blocks == 0
    assert story.reasons["a"] == "abort"
    assert story.scheduler.stats().retractions == 0


@pytest.mark.parametrize("role", [Role.FUSED, Role.DECODE])
def test_an_abort_wins_over_a_retraction(role: Role) -> None:
    """F6: v is thrown out and leaves before its store is acknowledged: it never comes back; what it stored is cache."""
    story = Rounds(pool=12, host_blocks=40, safe_steps=1, batch=2, role=role)
    Paper(story)
    story.submit(v=(10, 30), o=(10, 38))
    for _ in range(40):
        story.run()
        if "retracts v" in story.history():
            break
    assert story.scheduler.stats().copies_out == 1
    story.deliver(Abort(story.keys["v"]))
    said = list(story.outputs["v"])
    story.run_to_end()
    assert story.reasons == {"v": "abort", "o": "length"}
    assert story.outputs["v"] == said
    assert story.scheduler.stats().retractions == 1
    story.submit(tokens={"w": [*range(1_000_000, 1_000_010), *said, 5]}, w=(11 + len(said), 1))
    story.run_to_end()
    assert "hit w" in story.history()


@pytest.mark.parametrize(("pool", "acks_after"), [(60, 100), (33, 3)])
def test_a_window_goes_around_while_its_stores_are_out(pool: int, acks_after: int) -> None:
    """B5, with groups F + S (W=8): blocks of S are used again and again while stores hold others of them.

    None is given back twice, holes never, and each store reads what its name says though it is acknowledged late:
    at the very end, or when the pool has nothing left and the prompt waits for that.
    """
    groups = (CacheGroupConfig("full", GroupKind.FULL, 4), CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=8))
    story = Rounds(groups=groups, pool=pool, host_blocks=80, keeps_stores=True, budget_tokens=16, batch=2)
    Paper(story)
    story.submit(a=(92, 4))
    for turn in range(1, 20):
        story.run()
        stats = story.scheduler.stats()
        assert stats.used_blocks + stats.cached_blocks + stats.free_blocks == pool
        if turn % acks_after == 0:
            story.end_stores()
    story.end_stores()
    assert story.outputs["a"] == [1000 + position for position in range(92, 96)]
    assert story.scheduler.stats().used_blocks == 0
    stored = [block for plan in story.plans for store in plan.stores for block in view(store.sources).tolist()]
    assert 0 not in stored
    given = Counter(block for plan in story.plans for each in plan.zero for block in view(each.blocks).tolist())
    assert max(given.values()) > 1
