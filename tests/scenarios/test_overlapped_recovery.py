"""Stories of requests thrown out while rounds overlap: no token twice, none lost, no plan changed behind one's back."""

import itertools

import pytest

from control_plane import CacheGroupConfig, GroupKind
from control_plane.messages import Retract
from control_plane.messages.wire import encode_plan
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


@pytest.mark.parametrize(("host_blocks", "in_a_row"), list(itertools.product((0, 40), (1, 2))))
def test_a_late_result_of_a_retracted_request_is_dropped(host_blocks: int, in_a_row: int) -> None:
    """D2, depth 1: the device retracts a request in round 3 to 10, once or twice in a row, with its forward out.

    What that forward reports afterwards is of an attempt that is over: the output is that of an undisturbed run.
    """
    for after in range(3, 11):
        story = Rounds(overlap_depth=1, host_blocks=host_blocks, batch=4)
        Paper(story)
        story.submit(a=(7, 14), b=(9, 14))
        story.run(after)
        for _ in range(in_a_row):
            story.deliver(Retract(story.keys["a"]))
            story.run()
        story.run_to_end()
        assert story.outputs["a"] == [1000 + position for position in range(7, 21)]
        assert story.outputs["b"] == [2000 + position for position in range(9, 23)]
        assert story.scheduler.stats().retractions == in_a_row


@pytest.mark.parametrize("host_blocks", [0, 40])
def test_a_plan_does_not_change_after_it_was_handed_over(host_blocks: int) -> None:
    """D5, depth 1: growth, sliding, retraction, recovery and aborts later, every plan is what it was, byte for byte."""
    groups = (CacheGroupConfig("full", GroupKind.FULL, 4), CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=6))
    story = Rounds(groups=groups, pool=22, host_blocks=host_blocks, overlap_depth=1, safe_steps=2, batch=3)
    Paper(story)
    for turn in range(40):
        story.submit(**{f"r{turn}": (3 + turn % 17, 25 - turn % 13)})
        story.run(turn % 9)
        if turn % 5 == 4:
            story.abort(f"r{turn - 1}")
    story.run_to_end()
    assert story.scheduler.stats().retractions > 5
    assert [encode_plan(plan) for plan in story.plans if plan.has_work] == story._device.plans
