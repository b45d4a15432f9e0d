"""Which page of a prefix goes first when a store held its end for a while."""

from control_plane.cache.prefix.kv_events import KvRemoved, KvStored
from control_plane.testing.rounds import Rounds


def test_a_prefix_whose_end_was_being_stored_goes_from_its_end(rounds: Rounds) -> None:
    """R4.9, C11: the store at the finish holds the newest pages a little longer; they still go before the oldest."""
    rounds.configure(pool=5, host_blocks=20, kv_events=True, max_context_tokens=20)
    rounds.submit(a=(9, 8))
    rounds.run_to_end()
    stored = [event.digest for event in rounds.scheduler.drain_kv_events() if isinstance(event, KvStored)]
    assert len(stored) == 4
    rounds.submit(b=(5, 2))
    rounds.run()
    assert rounds.scheduler.drain_kv_events() == [KvRemoved(stored[-1])]
