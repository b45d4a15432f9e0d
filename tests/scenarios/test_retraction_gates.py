"""Stories of retractions with a host tier: when nobody is thrown out yet, who it is then, and the last resort (R5)."""

from typing import Any

import pytest

from control_plane import CacheGroupConfig, GroupKind
from control_plane.fsm.request import Request
from control_plane.scheduler import retraction
from control_plane.scheduler.phases import Desk
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def test_nobody_is_thrown_out_while_a_load_is_out(rounds: Rounds) -> None:
    """R5.4: depth 1: c's load-back is out when b finds no block. It writes to pages; b waits until it has ended."""
    Paper(rounds)
    rounds.configure(pool=9, host_blocks=40, overlap_depth=1, safe_steps=1, batch=3)
    prompt = list(range(16))
    rounds.submit(tokens={"p": [*prompt, 77]}, p=(17, 1))
    rounds.run_to_end()
    rounds.scheduler.clear_cache()
    rounds.submit(a=(10, 18), b=(10, 18))
    rounds.run(2)
    rounds.submit(tokens={"c": [*prompt, 88]}, c=(17, 4))
    rounds.run(12)
    assert rounds.scheduler.stats().rounds == 15
    assert "b blocked 1 of 0 | a awaits its store | retracts nobody while 1 loads" in rounds.history()
    rounds.skip()
    rounds.run(4)
    rounds.expect("""
        16 | decode c | b blocked 1 of 0 | a blocked 6 of 0 | retracts nobody while c is out | waits a
        17 | decode c | b blocked 1 of 0 | retracts nobody while c is out | waits a
        - | b blocked 1 of 0 | retracts nobody while c is out | waits a
        18 | decode b | evicts 1 | a blocked 6 of 3 | waits a
    """)
    rounds.run_to_end()


def test_nobody_is_thrown_out_while_a_pinned_store_is_out(rounds: Rounds) -> None:
    """R5.4: the prompts are still being stored when a and b both find no block: those stores give blocks back soon.

    A store that holds nothing, as that of a victim, is no reason to wait.
    """
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2, keeps_stores=True)
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run(8)
    rounds.skip()
    rounds.end_stores()
    rounds.run(2)
    rounds.expect("""
        6 | decode b | a blocked 1 of 0 | b blocked 1 of 0 | stores 1 of a | retracts a at 25 for a | evicts 1 | waits a
        7 | decode b | a awaits its store | waits a
    """)
    assert "retracts nobody while 0 loads and 2 stores are out" in rounds.history()
    assert paper.stores[-1] == "6 stream-ordered 1 full"


@pytest.mark.parametrize("mixed", [True, False])
def test_a_victims_result_in_flight_is_not_lost(mixed: bool) -> None:
    """D2, R5.4: depth 1, a host tier, no room for three: whoever is thrown out has nothing in flight.

    So no token is doubled and none is lost, however often.
    """
    story = Rounds(overlap_depth=1, pool=12, budget_tokens=16, batch=3, mixed=mixed, safe_steps=4, host_blocks=40)
    Paper(story)
    story.submit(a=14, b=17, c=11)
    story.run_to_end()
    assert story.scheduler.stats().retractions > 1
    assert "is out" in story.history()
    for (name, key), begin in zip(story.keys.items(), (14, 17, 11), strict=True):
        assert story.outputs[name] == [key * 1000 + position for position in range(begin, 48)]


def test_the_victim_is_who_releases_most(rounds: Rounds) -> None:
    """R5.5: a and b hold more blocks than c, but four of each are shared, which nobody would get: c goes."""
    Paper(rounds)
    rounds.configure(pool=17, host_blocks=40, safe_steps=1, batch=4)
    prompt = list(range(16))
    rounds.submit(tokens={"a": [*prompt, 1, 2], "b": [*prompt, 3, 4]}, a=(18, 30), b=(18, 30))
    rounds.run()
    rounds.submit(c=(12, 30))
    rounds.run(13)
    tables = rounds.scheduler._coordinator.tables
    assert [tables.held(slot, 0) for slot in range(3)] == [8, 7, 6]
    rounds.run()
    assert "15 | decode a b | b blocked 1 of 0 | c blocked 1 of 0" in rounds.history()
    assert "stores 3 of c | retracts c at 25 for b" in rounds.history()


def test_who_came_back_with_all_it_needs_is_spared(rounds: Rounds) -> None:
    """R7.4: a's second admission secured the 8 tokens that it had still to say then. When c lacks a block, c goes.

    Not a, which holds more and declared 13 tokens, of which 4 had been prepaid at first.
    """
    Paper(rounds)
    rounds.configure(pool=14, host_blocks=40, safe_steps=4, batch=3)
    rounds.submit(a=(20, 13), b=(20, 24), c=(4, 20))
    rounds.run(18)
    tables = rounds.scheduler._coordinator.tables
    assert "retracts a at 25" in rounds.history()
    assert [tables.held(slot, 0) for slot in (0, 2)] == [9, 5]
    rounds.run()
    assert "19 | decode a | c blocked 1 of 0" in rounds.history()
    assert "stores 4 of c | retracts c at 21 for c" in rounds.history()
    rounds.run_to_end()
    assert rounds.history().count("retracts a") == 1


FULL = CacheGroupConfig("full", GroupKind.FULL, 4)
SLIDING = CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=17)
DEADLOCK: dict[str, Any] = {
    "groups": (FULL, SLIDING),
    "pool": 19,
    "budget_tokens": 16,
    "batch": 2,
    "sliding_prepay": False,
    "mixed": False,
    "host_blocks": 40,
}
"""Two requests that prepaid their generation, and windows that grow until neither has a block for its next step."""


def test_the_last_resort_breaks_a_deadlock_of_spared_residents() -> None:
    """R5.6: everybody is spared and each lacks a sliding block: a goes after all, in the round that built nothing.

    Its window is stored and loaded; both say all they had to.
    """
    story = Rounds(**DEADLOCK)
    paper = Paper(story)
    story.submit(a=(8, 16), b=(8, 16))
    story.run_to_end(limit=100)
    assert "10 | decode b | a blocked 1 of 0 | b blocked 1 of 0 | stores 4 of a | retracts a at 17" in story.history()
    assert "prefill a[16:17) | hit a 16 | loads 1 for a" in story.history()
    assert paper.loads == ["21 1 sliding"]
    assert story.scheduler.stats().retractions == 1
    assert [len(tokens) for tokens in story.outputs.values()] == [16, 16]


@pytest.mark.parametrize("host_blocks", [0, 40])
def test_without_the_last_resort_it_is_one(host_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5.6, R5.8: the same two if nobody spared is ever chosen: nothing moves any more, and the stall watch counts."""
    choose = retraction.choose_victim

    def spares_covered_always(desk: Desk, *, spares_covered: bool) -> Request | None:
        return choose(desk, spares_covered=True)

    monkeypatch.setattr(retraction, "choose_victim", spares_covered_always)
    story = Rounds(**{**DEADLOCK, "host_blocks": host_blocks})
    story.submit(a=(8, 16), b=(8, 16))
    with pytest.raises(AssertionError, match="not over after 2000 rounds"):
        story.run_to_end()
    assert story.scheduler.stats().stalled_rounds > 1024
    report = story.scheduler.take_stall_report()
    assert report is not None
    assert "rounds without work, 2 requests; a: decoding: 9 tokens out" in report
