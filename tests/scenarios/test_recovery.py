"""Stories of coming back: who is first, who is held back meanwhile, and what is computed again (R7)."""

import random

import pytest

from control_plane.messages import NoteKind
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def recomputed_tokens(story: Rounds) -> list[int]:
    """By readmission: tokens that were computed before the retraction and are computed again, read off the plans."""
    frontier: dict[int, int] = {}
    is_back: dict[int, bool] = {}
    recomputed: list[int] = []
    for plan in story.plans:
        for note in plan.notes:
            if note.kind is NoteKind.RETRACTED:
                is_back[note.key] = False
        if plan.forward is None:
            continue
        keys, begins = view(plan.forward.keys).tolist(), view(plan.forward.prefix_lengths).tolist()
        lengths = view(plan.forward.input_lengths).tolist()
        for key, begin, length in zip(keys, begins, lengths, strict=True):
            if is_back.get(key) is False:
                is_back[key] = True
                recomputed.append(0)
            if key in is_back:
                recomputed[-1] += max(0, min(begin + length, frontier[key]) - begin)
            frontier[key] = max(frontier.get(key, 0), begin + length)
    return recomputed


def test_a_waiting_readmission_holds_back_newcomers_and_no_resident(rounds: Rounds) -> None:
    """A4, R7.2: h was retracted and needs more than there is: l decodes in every round, n waits behind h.

    Nobody is thrown out for h. When l ends, h comes back, then n.
    """
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=40, safe_steps=4)
    rounds.submit(h=(20, 24), l=(20, 12))
    rounds.run(6)
    rounds.submit(n=(4, 1))
    rounds.run(8)
    rounds.expect("""
        1 | prefill h[0:20) l[0:20)
        2 | decode h l
        3 | decode h l
        4 | decode h l
        5 | decode h l
        6 | decode l | h blocked 1 of 0 | l blocked 1 of 0 | stores 1 of h | retracts h at 25 for h | evicts 1 | waits h
        7 | decode l | h blocked 4 of 0 | h comes back before n | waits h n
        8 | decode l | h comes back before n | waits h n
        9 | decode l | h comes back before n | waits h n
        10 | decode l | evicts 1 | h comes back before n | waits h n
        11 | decode l | h comes back before n | waits h n
        12 | decode l | h comes back before n | waits h n
        13 | prefill h[24:25) | hit h 24 | loads 2 for h | evicts 4 | n blocked 2 of 1 | waits n
        14 | prefill n[0:4) | decode h | evicts 2
    """)
    rounds.run_to_end()
    assert rounds.scheduler.stats().retractions == 1
    assert paper.loads == ["13 2 full"]


def test_who_has_said_something_comes_back_first(rounds: Rounds) -> None:
    """A7, R7.1: y is thrown out before x, but x has a reader: x comes back first, then y, and 50 newcomers after both.

    No retraction is added while they wait.
    """
    Paper(rounds)
    rounds.configure(pool=10, host_blocks=60, safe_steps=1, batch=4, budget_tokens=12)
    rounds.submit(x=(8, 26), z=(8, 24))
    rounds.run(2)
    rounds.submit(y=26)
    rounds.run(14)
    assert rounds.history().index("retracts y at 26") < rounds.history().index("retracts x at 21")
    assert rounds.scheduler.stats().retractions == 2
    for turn in range(50):
        rounds.submit(**{f"n{turn}": (4, 1)})
        rounds.run()
    history = rounds.history().partition("retracts x at 21")[2]
    assert history.index("prefill x[20:21)") < history.index("prefill y[8:20)") < history.index("n0[0:4)")
    assert rounds.scheduler.stats().retractions == 2
    rounds.run_to_end()


def test_one_readmission_at_a_time(rounds: Rounds) -> None:
    """R7.1: a comes back chunk by chunk; c leaves and there is room for b as well, which waits until a is complete."""
    rounds.configure(pool=12, host_blocks=3, safe_steps=1, batch=3, budget_tokens=5)
    rounds.submit(a=(3, 28), b=(3, 28), c=(3, 28))
    rounds.run(24)
    rounds.skip()
    rounds.abort("c")
    rounds.run(4)
    rounds.expect("""
        25 | prefill a[5:10) | line held by a | waits b
        26 | prefill a[10:15) | line held by a | waits b
        27 | prefill a[15:17) | waits b
        28 | prefill b[4:8) | decode a | hit b 4 | evicts 5 | line held by b
    """)
    rounds.run_to_end()


def test_a_readmission_secures_a_longer_window(rounds: Rounds) -> None:
    """R7.3: safe_steps is 4; after its first retraction a must have room for 8 more: 33 take 9 blocks, 1 is there."""
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2)
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run(25)
    assert "25 | a blocked 8 of 6 | waits a" in rounds.history()
    rounds.run(2)
    assert rounds.scheduler._coordinator.tables.held(0, 0) == 9


def test_a_victim_without_room_on_the_host_waits_like_a_new_prompt(rounds: Rounds) -> None:
    """E3: a host of two blocks, both taken by a's store that is still out: of b's pages none is stored.

    b is not remembered as stored: it waits behind a, prefills again from its first token, and says all it had to.
    """
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=2, safe_steps=4, batch=3, keeps_stores=True)
    rounds.submit(a=(3, 28), b=(3, 28), c=(3, 28))
    rounds.run(23)
    assert "stores 2 of a | retracts a at 17" in rounds.history()
    assert "c blocked 1 of 0 | retracts b at 25 for b | a awaits its store" in rounds.history()
    assert rounds.scheduler.explain("b").startswith("retracted, prefills again, first in line: a was retracted")
    for _ in range(40):
        rounds.run()
        rounds.end_stores()
    assert paper.stores[0] == "15 stream-ordered 2 full"
    assert "prefill b[0:25)" in rounds.history()
    for name, key in rounds.keys.items():
        assert rounds.outputs[name] == [key * 1000 + position for position in range(3, 31)]


def test_a_readmission_waits_for_its_own_store(rounds: Rounds) -> None:
    """R5.3: what left the device for the host cannot be loaded before it is there; then it is."""
    paper = Paper(rounds)
    rounds.configure(pool=12, host_blocks=20, safe_steps=4, batch=2, keeps_stores=True)
    rounds.submit(a=(20, 24), b=(20, 24))
    rounds.run(3)
    rounds.end_stores()
    rounds.run(4)
    assert "6 | decode b | a blocked 1 of 0 | b blocked 1 of 0 | stores 1 of a | retracts a at 25" in rounds.history()
    rounds.skip()
    rounds.abort("b")
    rounds.run(2)
    rounds.expect("""
        - | a awaits its store | waits a
        - | a awaits its store | waits a
    """)
    rounds.end_stores()
    rounds.run()
    assert paper.loads == ["8 1 full"]


@pytest.mark.parametrize("seed", range(8))
def test_a_readmission_computes_one_chunk_again(seed: int) -> None:
    """With room on the host, a page and the token that was not fed yet are all that a readmission computes again."""
    draw = random.Random(seed)
    story = Rounds(pool=14, host_blocks=100, safe_steps=4, budget_tokens=12, batch=4, overlap_depth=seed % 2)
    Paper(story)
    story.submit(**{name: (draw.randint(3, 20), draw.randint(10, 30)) for name in "abcdef"})
    story.run_to_end()
    recomputed = recomputed_tokens(story)
    assert len(recomputed) == story.scheduler.stats().retractions > 0
    assert max(recomputed) <= 4
    assert min(len(tokens) for tokens in story.outputs.values()) >= 10
