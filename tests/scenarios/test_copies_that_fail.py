"""Stories of stores and load-backs that fail: each fails for itself, and nobody computes on what was not copied (E)."""

from control_plane import CacheGroupConfig, GroupKind
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper

PREFIX = list(range(16))


def prefix_on_host(rounds: Rounds) -> None:
    """Four pages are on the host and not on the device; two rounds and one store have passed."""
    rounds.submit(tokens={"p": [*PREFIX, 77]}, p=(17, 1))
    rounds.run_to_end()
    assert rounds.scheduler.clear_cache()
    rounds.skip()


def test_who_shares_a_failed_load_prefills_again(rounds: Rounds) -> None:
    """A load-back fails: both prompts that counted on it start over, with another load; their clients see no error."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=40, fail_ops={2})
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, 88], "b": [*PREFIX, 99]}, a=(17, 3), b=(17, 3))
    rounds.submit(x=(6, 3))
    rounds.run_to_end()
    assert rounds.history().splitlines()[2:4] == [
        "3 | prefill a[16:17) b[16:17) x[0:6) | hit a 16 | loads 4 for a | hit b 16",
        "4 | prefill a[16:17) b[16:17) | decode x | hit a 16 | loads 4 for a | hit b 16",
    ]
    assert paper.loads == ["3 4 full", "4 4 full"]
    assert [rounds.outputs[name] for name in "abx"] == [[2017, 2018, 2019], [3017, 3018, 3019], [4006, 4007, 4008]]
    assert rounds.scheduler.stats().retractions == 2


def test_a_failed_load_takes_back_what_was_computed_on_it(rounds: Rounds) -> None:
    """Depth 1: round 4 is planned on pages whose load-back fails in round 3: its token and its page do not count."""
    Paper(rounds)
    rounds.configure(host_blocks=40, fail_ops={2}, overlap_depth=1)
    prefix_on_host(rounds)
    prompt = [*PREFIX, *range(90, 96)]
    rounds.submit(tokens={"a": prompt}, a=(22, 3))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt, 5]}, b=(23, 2))
    rounds.run()
    rounds.expect("""
        3 | prefill a[16:22) | hit a 16 | loads 4 for a
        4 | decode a
        5 | prefill a[16:22) b[16:23) | hit a 16 | loads 4 for a | hit b 16
    """)
    rounds.run_to_end()
    assert rounds.outputs["a"] == [2022, 2023, 2024]
    assert rounds.outputs["b"] == [3023, 3024]


def test_readers_whose_window_moved_on_prefill_again_too(rounds: Rounds) -> None:
    """A failed load-back is known when its block has slid out of the reader's window: it read rubbish all the same."""
    paper = Paper(rounds)
    groups = (CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=6),)
    rounds.configure(groups=groups, host_blocks=40, fail_ops={3}, overlap_depth=1, budget_tokens=9)
    prefix_on_host(rounds)
    rounds.submit(tokens={"a": [*PREFIX, *range(90, 110)]}, a=(36, 3))
    rounds.run(3)
    rounds.expect("""
        5 | prefill a[16:25) | hit a 16 | loads 2 for a | line held by a
        6 | prefill a[25:34) | line held by a
        7 | prefill a[16:25) | hit a 16 | loads 2 for a | line held by a
    """)
    rounds.run_to_end()
    assert paper.loads == ["5 2 sliding", "7 2 sliding"]
    assert rounds.scheduler.stats().retractions == 1
    assert rounds.outputs["a"] == [2036, 2037, 2038]


def test_a_failed_store_leaves_nothing_on_the_host(rounds: Rounds) -> None:
    """E3: the prompt's store fails: it is not remembered as stored, and its host blocks and pins are given back."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=4, fail_ops={1})
    prefix_on_host(rounds)
    assert rounds.scheduler.stats().host_used_blocks == 0
    rounds.submit(tokens={"a": [*PREFIX, 88]}, a=(17, 3))
    rounds.run_to_end()
    assert rounds.history().splitlines()[2] == "3 | prefill a[0:17)"
    assert paper.stores == ["2 pinned-until-ack 4 full", "4 pinned-until-ack 4 full"]
    assert rounds.scheduler.stats().host_used_blocks == 4


def test_a_failed_store_of_a_victim_costs_it_a_page(rounds: Rounds) -> None:
    """E3: what a had said before it was thrown out did not reach the host: it computes that page again, and no more."""
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2, fail_ops={3})
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run_to_end()
    assert paper.stores[2] == "6 stream-ordered 1 full"
    assert "26 | prefill a[20:25) | hit a 20 | loads 4 for a" in rounds.history()
    for name, key in rounds.keys.items():
        assert rounds.outputs[name] == [key * 1000 + position for position in range(20, 44)]


def test_a_store_that_never_ends_keeps_its_blocks_and_nothing_else(rounds: Rounds) -> None:
    """R5.3: a pinned store without an acknowledgement: its request ended long ago, others go on beside its blocks."""
    Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, keeps_stores=True)
    rounds.submit(a=(17, 1))
    rounds.run(3)
    held = set(view(next(plan.stores for plan in rounds.plans if plan.stores)[0].sources).tolist())
    for turn in range(5):
        rounds.submit(**{f"b{turn}": (3, 8)})
        rounds.run(10)
        assert len(rounds.outputs[f"b{turn}"]) == 8
        rounds.end_stores(*(op for op in range(2, 9) if op in rounds._device.stores_out))
    assert rounds.scheduler.stats().used_blocks == len(held) == 4
    cleared = {block for plan in rounds.plans[3:] for each in plan.zero for block in view(each.blocks).tolist()}
    assert cleared
    assert not cleared & held
    rounds.end_stores()
    assert rounds.scheduler.stats().used_blocks == 0
