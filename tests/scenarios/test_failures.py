"""Stories of forwards that fail: their requests end, others go on, and nothing unwritten stays in the cache."""

import pytest

from control_plane import CacheGroupConfig, GroupKind, InvalidTransition
from control_plane.messages import Finish, Retract
from control_plane.testing.rounds import Rounds


def test_a_failed_forward_ends_its_requests_and_nobody_else(rounds: Rounds) -> None:
    """A data-plane fault in round 2: who was in it gets an error; who waited runs as if nothing had been."""
    rounds.configure(fail={2}, batch=2)
    rounds.submit(a=(8, 4), b=(8, 4), c=(8, 4))
    rounds.run_to_end()
    assert rounds.reasons == {"a": "error", "b": "error", "c": "length"}
    assert rounds.outputs["c"] == [3000 + position for position in range(8, 12)]
    assert rounds.scheduler.stats().used_blocks == 0


def test_pages_of_a_failed_forward_are_not_hit(rounds: Rounds) -> None:
    """The chunk that failed was to complete four pages; the same prompt afterwards hits only what came before it."""
    rounds.configure(fail={2}, budget_tokens=16, mixed=False)
    prompt = list(range(40))
    rounds.submit(tokens={"a": prompt}, a=(40, 2))
    rounds.run(3)
    rounds.skip()
    rounds.submit(tokens={"b": prompt}, b=(40, 2))
    rounds.run()
    rounds.expect("""
        3 | prefill b[16:32) | hit b 16 | line held by b
    """)


def test_who_hit_pages_of_a_failed_forward_prefills_again(rounds: Rounds) -> None:
    """Depth 1: round 2's pages are listed and hit in round 3 while round 2 is out; it fails; the reader starts over.

    Its token from round 3 was computed from pages that were never written, so it reaches nobody.
    """
    rounds.configure(fail={2}, overlap_depth=1, budget_tokens=40, batch=4, mixed=True)
    prompt = list(range(32))
    rounds.submit(tokens={"a": [*prompt, *range(70, 90)]}, a=(52, 4))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt, *range(70, 86), 99]}, b=(49, 3))
    rounds.run_to_end()
    assert rounds.reasons == {"a": "error", "b": "length"}
    assert "hit b 48" in rounds.history().split("3 | ")[1].splitlines()[0]
    assert rounds.scheduler.stats().retractions == 1
    assert rounds.outputs["b"] == [2000 + position for position in range(49, 52)]


def test_an_abort_does_not_save_pages_whose_forward_fails(rounds: Rounds) -> None:
    """As above, but the writer's client leaves before the failure is known: the reader must start over all the same."""
    rounds.configure(fail={2}, overlap_depth=1, budget_tokens=40, batch=4, mixed=True)
    prompt = list(range(32))
    rounds.submit(tokens={"a": [*prompt, *range(70, 90)]}, a=(52, 4))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt, *range(70, 86), 99]}, b=(49, 3))
    rounds.run()
    rounds.abort("a")
    rounds.run_to_end()
    assert rounds.outputs["b"] == [2000 + position for position in range(49, 52)]
    assert rounds.scheduler.stats().retractions == 1


def test_pages_that_slid_out_of_a_failed_forward_are_not_hit(rounds: Rounds) -> None:
    """Depth 1: round 1's page is listed in round 2 and slides out of its window in that step; then round 1 fails."""
    rounds.configure(
        groups=(CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=2),), overlap_depth=1, fail={1}, batch=2
    )
    rounds.submit(tokens={"a": [1, 2, 3, 4, 5]}, a=(5, 4))
    rounds.run(2)
    rounds.run()
    rounds.submit(tokens={"b": [1, 2, 3, 4, 5]}, b=(5, 4))
    rounds.run_to_end()
    assert rounds.reasons == {"a": "error", "b": "length"}
    assert "hit b" not in rounds.history()


def test_a_retract_from_the_runtime_publishes_nothing(rounds: Rounds) -> None:
    """R7.5: the device could not fill what was admitted: the request prefills again from its first token."""
    rounds.configure(budget_tokens=32, mixed=False)
    rounds.submit(a=(16, 3))
    rounds.run()
    rounds.tell(Retract(rounds.keys["a"]))
    rounds.run()
    rounds.expect("""
        1 | prefill a[0:16)
        2 | prefill a[0:17)
    """)
    rounds.run_to_end()
    assert rounds.outputs["a"] == [1016, 1017, 1018]


def test_an_illegal_event_is_refused_and_changes_nothing(rounds: Rounds) -> None:
    """R2.3: finishing a request that never ran raises, naming state and event."""
    rounds.submit(a=(8, 2))
    rounds.scheduler.audit()
    with pytest.raises(InvalidTransition, match="Submitted has no arrow for Finish"):
        rounds.scheduler.advance([Finish(rounds.keys["a"])])
    rounds.run_to_end()
    assert len(rounds.outputs["a"]) == 2
