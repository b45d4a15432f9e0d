"""Stories of retraction: who gives way, for whom, and who is spared (R5, R7.3, R7.4)."""

from control_plane import CacheGroupConfig, GroupKind
from control_plane.testing.rounds import Rounds


def test_an_incomplete_prefill_gives_way_before_a_decode(rounds: Rounds) -> None:
    """R5.5: a decode finds no block while a prompt is half computed: nobody reads that prompt yet, so it goes.

    Though the decode would release twice as much.
    """
    rounds.configure(pool=9, budget_tokens=13, batch=3)
    rounds.submit(a=20)
    rounds.run(2)
    rounds.submit(b=30)
    rounds.run(12)
    assert "retracts b" in rounds.history()
    assert "retracts a" not in rounds.history()
    rounds.run_to_end()
    assert [len(tokens) for tokens in rounds.outputs.values()] == [16, 6]


def test_a_covered_request_is_spared(rounds: Rounds) -> None:
    """R7.4: `a` prepaid all it will say and is never thrown out; `b` declared nothing and gives way to itself alone."""
    rounds.configure(pool=12, batch=2)
    rounds.submit(a=(16, 16), b=8)
    rounds.run_to_end()
    assert "retracts a" not in rounds.history()
    assert "retracts b at 17 for b" in rounds.history()
    assert [len(tokens) for tokens in rounds.outputs.values()] == [16, 40]


def test_what_was_freed_is_granted_in_the_same_round(rounds: Rounds) -> None:
    """R5.2: the round that retracts is the round in which the other blocked decode goes on."""
    rounds.configure(pool=12, budget_tokens=16, batch=2)
    rounds.submit(a=20, b=20)
    rounds.run(8)
    last = rounds.history().splitlines()[-1]
    assert last.startswith("8 | decode b")
    assert "retracts a at 25 for a" in last


def test_covered_residents_cannot_starve_each_other(rounds: Rounds) -> None:
    """R5.6: everybody is spared, and each needs a sliding block that the other holds: the last resort breaks it."""
    groups = (
        CacheGroupConfig("full", GroupKind.FULL, 4),
        CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=17),
    )
    rounds.configure(groups=groups, pool=19, budget_tokens=16, batch=2, sliding_prepay=False, mixed=False)
    rounds.submit(a=(8, 16), b=(8, 16))
    rounds.run_to_end(limit=200)
    assert [len(tokens) for tokens in rounds.outputs.values()] == [16, 16]
    assert rounds.scheduler.stats().retractions == 1


def test_each_retraction_secures_more(rounds: Rounds) -> None:
    """R7.3, A14: with windows of 4 steps nobody is thrown out more than a few times, and everybody ends."""
    rounds.configure(pool=14, batch=4, safe_steps=4, budget_tokens=24)
    rounds.submit(a=(12, 30), b=(12, 30), c=(12, 30), d=(12, 30))
    rounds.run_to_end()
    assert [len(tokens) for tokens in rounds.outputs.values()] == [30] * 4
    assert rounds.scheduler.stats().retractions <= 4 * -(-30 // 4)


def test_a_covered_decode_is_served_before_a_prompt_that_would_only_take_a_victims_place(rounds: Rounds) -> None:
    """R5.6, §8.3: two prompts took turns for ever, each thrown out as its own blocker, beside a blocked decode."""
    groups = (CacheGroupConfig("sliding", GroupKind.SLIDING, 16, window=40),)
    rounds.configure(P=32, groups=groups, pool=6, budget_tokens=3, batch=2, mixed=False, max_context_tokens=160)
    rounds.submit(a=(123, 25), b=(150, 10), c=(149, 9))
    rounds.run_to_end(limit=1000)
    assert [len(tokens) for tokens in rounds.outputs.values()] == [25, 10, 9]
