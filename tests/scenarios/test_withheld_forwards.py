"""Stories of forwards that the device withheld, since what they were to read was not filled (R7.5, E6, E8)."""

import pytest

from control_plane.config import Role
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper

PREFIX = list(range(16))


def prefix_on_host(rounds: Rounds) -> None:
    """Four pages are on the host and not on the device; two rounds have passed."""
    rounds.submit(tokens={"p": [*PREFIX, 77]}, p=(17, 1))
    rounds.run_to_end()
    assert rounds.scheduler.clear_cache()
    rounds.skip()


def test_a_withheld_forward_is_computed_again(rounds: Rounds) -> None:
    """E6, alone: the load ended, yet round 3 was withheld: its token reaches nobody, a prefills again, no error."""
    Paper(rounds)
    rounds.configure(host_blocks=40, lose={3})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run_to_end()
    rounds.expect("""
        3 | prefill a[16:17) | hit a 16 | loads 4 for a
        4 | prefill a[16:17) | hit a 16
        5 | decode a
        6 | decode a
    """)
    assert rounds.outputs["a"] == [2017, 2018, 2019]
    assert rounds.reasons["a"] == "length"


def test_all_requests_of_a_withheld_forward_retract(rounds: Rounds) -> None:
    """E6, R7.5 with two decodes: none of them got its token; each goes on from what landed before, in one round."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=40, silent={6})
    prefix_on_host(rounds)
    rounds.submit(b=(5, 6), c=(5, 6))
    rounds.run(3)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run(3)
    rounds.expect("""
        3 | prefill b[0:5) c[0:5)
        4 | decode b c
        5 | decode b c
        6 | prefill a[16:17) | decode b c | hit a 16 | loads 4 for a
        7 | prefill b[4:8) c[4:8) a[16:17) | hit b 4 | hit c 4 | hit a 16 | loads 4 for a
        8 | decode b c a
    """)
    rounds.end_loads()
    rounds.run_to_end()
    assert rounds.scheduler.stats().retractions == 3
    assert paper.loads == ["6 4 full", "7 4 full"]
    assert rounds.outputs["b"] == [2000 + position for position in range(5, 11)]
    assert rounds.outputs["c"] == [3000 + position for position in range(5, 11)]
    assert rounds.outputs["a"] == [4017, 4018, 4019]


def test_a_second_plan_out_keeps_its_own_result(rounds: Rounds) -> None:
    """E6, depth 1: round 3 is withheld while round 4 is out: x of round 4 gets its token, a's from there is void."""
    Paper(rounds)
    rounds.configure(host_blocks=40, overlap_depth=1, lose={3})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run()
    rounds.submit(x=(6, 3))
    rounds.run_to_end()
    assert rounds.history().splitlines()[2:6] == [
        "3 | prefill a[16:17) | hit a 16 | loads 4 for a",
        "4 | prefill x[0:6) | decode a",
        "5 | prefill a[16:17) | decode x | hit a 16",
        "6 | decode a x",
    ]
    assert rounds.outputs["a"] == [2017, 2018, 2019]
    assert rounds.outputs["x"] == [3006, 3007, 3008]
    assert rounds.scheduler.stats().retractions == 1


def test_a_prompt_for_the_peer_is_withheld_as_well(rounds: Rounds) -> None:
    """E6, role D: r's load-back fails beside two decodes; the peer is not asked, r is computed here, nobody errs.

    They come back one at a time: b and c, who have readers, before r.
    """
    paper = Paper(rounds)
    rounds.configure(role=Role.DECODE, pool=13, host_blocks=40, batch=3, safe_steps=1, silent={22})
    rounds.submit(tokens={"v": [*PREFIX, 77]}, v=(17, 20), w=(10, 42))
    rounds.run(19)
    assert "retracts v at 33" in rounds.history()  # which is what stores its prompt
    rounds.abort("v", "w")
    rounds.run_to_end()
    assert rounds.scheduler.clear_cache()
    rounds.submit(b=(5, 4), c=(5, 4))
    rounds.run(4)
    rounds.skip()
    rounds.submit(tokens={"r": [*PREFIX, 99]}, r=(17, 3))
    rounds.run(6)
    rounds.expect("""
        22 | decode b c | peer prefills r[16:17) | hit r 16 | loads 4 for r
        23 | prefill b[4:7) | hit b 4 | waits c r
        24 | prefill c[4:6) | hit c 4 | waits r
        25 | decode b c | r blocked 5 of 4 | waits r
        26 | prefill r[16:17) | hit r 16 | loads 4 for r
        27 | decode c r
    """)
    assert rounds.scheduler.stats().transfers_out == 0
    assert paper.loads == ["22 4 full", "26 4 full"]
    rounds.end_loads()
    rounds.run_to_end()
    for name in "bcr":
        assert rounds.reasons[name] == "length"


def test_nothing_of_a_withheld_chunk_is_cached(rounds: Rounds) -> None:
    """R7.5: the second chunk of three was withheld: a goes on from the first, and so does whoever shares the prompt."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=40, budget_tokens=10, lose={2}, mixed=False)
    prompt = list(range(24))
    rounds.submit(tokens={"a": prompt}, a=(24, 2))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt[:22], 97, 98]}, b=(24, 2))
    rounds.run(2)
    rounds.expect("""
        1 | prefill a[0:10) | line held by a
        2 | prefill a[10:20) | line held by a
        3 | prefill a[8:18) | hit a 8 | line held by a | waits b
        4 | prefill a[18:24) b[16:20) | hit b 16 | line held by b
    """)
    rounds.run_to_end()
    assert paper.stores[0] == "2 pinned-until-ack 2 full"


def test_silence_ends_with_the_deadline(rounds: Rounds) -> None:
    """E8: a's load-back never ends; the device gives up: a loads into other blocks, and ends as if nothing had been.

    The four blocks stay held: the copy may still be writing. When it ends at last they are free, and that is all.
    """
    paper = Paper(rounds)
    rounds.configure(pool=24, host_blocks=40, silent={3})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run(5)
    rounds.expect("""
        3 | prefill a[16:17) | hit a 16 | loads 4 for a
        4 | prefill a[16:17) | hit a 16 | loads 4 for a
        5 | decode a
        6 | decode a
    """)
    assert not rounds.scheduler.requests
    stats = rounds.scheduler.stats()
    assert (stats.copies_out, stats.used_blocks, stats.running) == (1, 4, 0)
    assert not rounds.scheduler.clear_cache()
    rounds.end_loads()
    stats = rounds.scheduler.stats()
    assert (stats.copies_out, stats.used_blocks) == (0, 0)
    assert paper.loads == ["3 4 full", "4 4 full"]
    assert rounds.outputs["a"] == [2017, 2018, 2019]


def test_a_late_load_writes_to_nobodys_blocks(rounds: Rounds) -> None:
    """E8: as above, and the pool is full of others when the late copy ends: none of them reads its bytes."""
    Paper(rounds)
    rounds.configure(pool=16, host_blocks=40, silent={3})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run(2)
    (late_load,) = next(plan.load_backs for plan in rounds.plans if plan.load_backs)
    late = set(view(late_load.destinations).tolist())
    rounds.submit(b=(20, 4), c=(20, 4))
    rounds.run(2)
    tables = rounds.scheduler._coordinator.tables
    taken = {block for slot in range(3) for block in tables.blocks(slot, 0).tolist()}
    assert not taken & late
    rounds.end_loads()
    rounds.run_to_end()
    assert [len(tokens) for tokens in rounds.outputs.values()] == [1, 3, 4, 4]


@pytest.mark.parametrize("success", [True, False])
def test_a_late_load_that_failed_rolls_nobody_back(success: bool) -> None:
    """E8: whether the late copy worked does not matter any more."""
    story = Rounds(pool=24, host_blocks=40, silent={3}, fail_ops=() if success else (2,))
    Paper(story)
    prefix_on_host(story)
    story.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 5))
    story.run(4)
    story.end_loads()
    story.run_to_end()
    assert story.scheduler.stats().retractions == 1
    assert len(story.outputs["a"]) == 5


def test_a_load_that_was_given_up_keeps_nobody_waiting(rounds: Rounds) -> None:
    """E8, R5.4: the load never ends, and b and c both lack a block: it is no reason to wait, nobody owns its pages."""
    Paper(rounds)
    rounds.configure(pool=12, host_blocks=40, batch=3, safe_steps=1, silent={3})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run()
    rounds.abort("a")
    rounds.submit(b=(12, 16), c=(12, 16))
    rounds.run(40)
    assert "9 | decode c | b blocked 1 of 0 | c blocked 1 of 0 | stores 1 of b | retracts b at 17" in rounds.history()
    assert [len(rounds.outputs[name]) for name in "bc"] == [16, 16]
    assert rounds.scheduler.stats().used_blocks == 4
    rounds.end_loads()
    assert rounds.scheduler.stats().used_blocks == 0
