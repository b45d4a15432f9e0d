"""Stories of a load-back into pages that somebody else computes at the same time (E4)."""

import pytest

from control_plane.messages import Abort
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def a_prefix_that_arrives_late(**config: int | set[int]) -> Rounds:
    """A prefix of 16 tokens is on its way to the host: neither there nor on the device is it found.

    v said it, was thrown out and left; x then took every block that had been v's.
    """
    story = Rounds(
        pool=12, host_blocks=40, keeps_stores=True, batch=4, safe_steps=1, budget_tokens=12, mixed=False, **config
    )
    Paper(story)
    story.submit(v=(3, 40), w=(3, 40))
    story.run(40)
    assert "stores 6 of v | retracts v at 25" in story.history()
    story.abort("v", "w")
    story.run()
    story.submit(x=(44, 1))
    story.run(6)
    assert not story.scheduler.requests
    story.end_stores(*(op for op in story._device.stores_out if op != 1))
    story.skip()
    return story


PREFIX = [*range(1_000_000, 1_000_003), *range(1003, 1016)]


@pytest.mark.parametrize(("loads_first", "fails"), [(False, False), (False, True), (True, False)])
def test_a_prefix_is_loaded_for_one_and_computed_by_another(loads_first: bool, fails: bool) -> None:
    """E4: b computes what c has loaded. The load's block is the one that stays, b's own is given back, once.

    Whether the load ends before or after b publishes, or fails: then b, whose table points at its block, starts over
    as c does. Nothing is freed twice, and both say what they say alone.
    """
    story = a_prefix_that_arrives_late(overlap_depth=1, fail_ops={6} if fails else set())
    story.submit(tokens={"b": [*PREFIX, 5]}, b=(17, 4))
    story.run()
    story.end_stores()
    story.submit(tokens={"c": [*PREFIX, 6]}, c=(17, 4))
    story.run()
    (load,) = story.plans[-1].load_backs
    assert load.op == 6
    if loads_first:
        story.land_all()
    story.run()
    story.expect("""
        45 | prefill b[0:12) | evicts 4 | line held by b
        46 | prefill b[12:17) c[16:17) | hit c 16 | loads 1 for c | evicts 2
        47 | decode b c
    """)
    tables = story.scheduler._coordinator.tables
    (loaded,) = view(load.destinations).tolist()
    assert [int(tables.blocks(slot, 0)[3]) for slot in (0, 1)] == [loaded, loaded]
    for _ in range(8):
        story.run()
        story.end_stores()
    assert story.scheduler.stats().retractions == 1 + 2 * fails  # v, and those two
    for name, key in (("b", story.keys["b"]), ("c", story.keys["c"])):
        assert story.outputs[name] == [key * 1000 + position for position in range(17, 21)]
    assert story.scheduler.stats().used_blocks == 0


def test_the_pages_of_a_load_stay_its_own_until_it_ends() -> None:
    """E4, R2.4: both leave while the load is out: its block is held by the copy alone, and free when that ends."""
    story = a_prefix_that_arrives_late(overlap_depth=1)
    story.submit(tokens={"b": [*PREFIX, 5]}, b=(17, 4))
    story.run()
    story.end_stores()
    story.submit(tokens={"c": [*PREFIX, 6]}, c=(17, 4))
    story.run()
    (load,) = story.plans[-1].load_backs
    story.deliver(Abort(story.keys["b"]), Abort(story.keys["c"]))
    assert not story.scheduler.requests
    holdings = story.scheduler._coordinator._holdings
    (loaded,) = view(load.destinations).tolist()
    assert holdings.is_held(0, loaded)
    story.land_all()
    assert not holdings.is_held(0, loaded)
