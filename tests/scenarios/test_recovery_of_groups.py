"""Stories of coming back with snapshots and windows: what of them is worth storing, and where a request goes on."""

import pytest

from control_plane import CacheGroupConfig, GroupKind
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper

FULL = CacheGroupConfig("full", GroupKind.FULL, 4)
STATE = CacheGroupConfig("state", GroupKind.STATE, 4)
SLIDING = CacheGroupConfig("sliding", GroupKind.SLIDING, 4, window=6)


@pytest.mark.parametrize(
    ("host_blocks", "stores", "comes_back"),
    [
        (60, ["5 stream-ordered 2 full", "5 stream-ordered 1 state"], "prefill y[16:26) | hit y 16"),
        (0, [], "prefill y[0:12) | evicts"),
    ],
)
def test_a_prefill_goes_on_from_its_last_snapshot(host_blocks: int, stores: list[str], comes_back: str) -> None:
    """R4.6 with a state group: y is thrown out after two chunks; the snapshot of the second is an endpoint now.

    It is stored with the pages and y goes on from there. Without a host tier no chunk's snapshot is worth keeping.
    """
    story = Rounds(
        pool=16, host_blocks=host_blocks, safe_steps=1, batch=3, budget_tokens=12, groups=(FULL, STATE), max_overtakes=0
    )
    paper = Paper(story)
    story.submit(x=(8, 26), z=(8, 24))
    story.run(2)
    story.submit(y=26)
    story.run(3)
    assert "5 | decode x z | y blocked" in story.history()
    assert "retracts y at 26 for y" in story.history()
    assert [line for line in paper.stores if "stream-ordered" in line] == stores
    story.abort("x", "z")
    story.run(2)
    assert comes_back in story.history()
    story.run_to_end()


def test_a_decode_goes_on_from_its_prompts_endpoint(rounds: Rounds) -> None:
    """R4.6 with a state group: a decode stores pages and no snapshot; x, thrown out at 29, prefills from 8 on.

    That is where its prompt ended: the only snapshot of it that anybody made.
    """
    paper = Paper(rounds)
    rounds.configure(pool=16, host_blocks=60, safe_steps=1, batch=2, budget_tokens=12, groups=(FULL, STATE))
    rounds.submit(x=(8, 26), z=(8, 26))
    rounds.run(26)
    assert "stores 5 of x | retracts x at 29 for x" in rounds.history()
    rounds.abort("z")
    rounds.run()
    assert [line for line in paper.stores if "stream-ordered" in line] == ["22 stream-ordered 5 full"]
    assert "prefill x[8:20) | hit x 8" in rounds.history()
    rounds.run_to_end()
    assert rounds.outputs["x"] == [1000 + position for position in range(8, 34)]


def test_a_window_comes_back_with_its_last_blocks(rounds: Rounds) -> None:
    """R5.3, R4.8 with W=6: of a victim's window what a hit at its last page reads is stored, and loaded again.

    Its pages before that are on the host since its prompt, its blocks before that slid out and are nobody's.
    """
    paper = Paper(rounds)
    rounds.configure(pool=17, host_blocks=60, safe_steps=1, batch=2, budget_tokens=12, groups=(FULL, SLIDING))
    rounds.submit(x=(8, 26), z=(8, 26))
    rounds.run_to_end()
    assert "stores 6 of x | retracts x at 25" in rounds.history()
    assert [line for line in paper.stores if "stream-ordered" in line] == [
        "19 stream-ordered 4 full",
        "19 stream-ordered 2 sliding",
    ]
    assert "prefill x[24:25) | hit x 24" in rounds.history()
    assert paper.loads == ["29 4 full", "29 2 sliding"]
    assert rounds.outputs["x"] == [1000 + position for position in range(8, 34)]
