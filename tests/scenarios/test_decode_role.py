"""Stories of an engine that decodes what a peer prefills (R6.D)."""

import pytest

from control_plane.config import Role
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


@pytest.fixture
def rounds(rounds: Rounds) -> Rounds:
    """A story of this role; the peer's rows, and whatever is computed on them, are checked."""
    rounds.configure(role=Role.DECODE)
    Paper(rounds)
    return rounds


def test_one_prompt_a_round_goes_to_the_peer_beside_the_decodes(rounds: Rounds) -> None:
    """R6.D: whole prompts, one a round, beside the decode batch and outside of its budget, in submission order."""
    rounds.submit(a=(8, 5), b=(40, 5), c=(4, 5))
    rounds.run(batch=3, budget_tokens=4)
    rounds.land_all()
    rounds.run(4)
    rounds.expect("""
        1 | peer prefills a[0:8) | waits b c
        2 | decode a | peer prefills b[0:40) | waits c
        3 | decode a b | peer prefills c[0:4)
        4 | decode a b c
        5 | decode a b c
    """)
    rounds.run_to_end()
    assert rounds.outputs["b"] == [2000 + position for position in range(40, 45)]


def test_the_peers_first_token_is_the_first_and_is_fed(rounds: Rounds) -> None:
    """R6.D: the landing brings one token; the first step is told to feed it, since no forward here sampled it."""
    rounds.submit(a=(8, 3))
    rounds.run()
    rounds.land_all()
    assert rounds.outputs["a"] == [1008]
    rounds.run()
    (binding,) = rounds.plans[-1].bindings
    assert (binding.prompt_tokens, binding.last_token) == (8, 1008)
    rounds.run_to_end()
    assert rounds.outputs["a"] == [1008, 1009, 1010]


def test_a_landing_has_what_its_first_decodes_need(rounds: Rounds) -> None:
    """F7: 16 + 4 tokens take 5 blocks of 7 at once; b of 12 + 4 waits for a to end rather than land beside it.

    With decode width 1: the scripted device accepts no drafts. What width 2 reserves is `decode_overshoot`, which the
    programs of the properties run.
    """
    rounds.configure(pool=7)
    rounds.submit(a=(16, 4), b=(12, 4))
    rounds.run()
    assert rounds.scheduler._coordinator.tables.held(0, 0) == 5
    rounds.run(8)
    rounds.expect("""
        1 | peer prefills a[0:16) | waits b
        - | b blocked 4 of 2 | line sealed behind b | waits b
        2 | decode a | waits b
        3 | decode a | waits b
        4 | decode a | waits b
        5 | peer prefills b[0:12) | evicts 1
        6 | decode b
        7 | decode b
    """)
    rounds.run_to_end()
    assert [len(tokens) for tokens in rounds.outputs.values()] == [4, 4]


def test_a_prompt_at_the_peer_is_nobodys_victim(rounds: Rounds) -> None:
    """R5.4: c holds most, but the peer writes its pages: when a and b both lack a block, a goes."""
    rounds.configure(pool=14, safe_steps=4, keeps_transfers=True, host_blocks=40)
    rounds.submit(a=(12, 24), b=(12, 24))
    rounds.run(2)
    rounds.land_all()
    rounds.end_transfer("a")
    rounds.end_transfer("b")
    rounds.run(2)
    rounds.submit(c=(20, 2))
    rounds.run(4)
    rounds.expect("""
        1 | peer prefills a[0:12) | waits b
        2 | peer prefills b[0:12)
        3 | decode a b
        4 | decode a b
        5 | decode a b | peer prefills c[0:20)
        6 | decode a b
        7 | decode b | a blocked 1 of 0 | b blocked 1 of 0 | stores 4 of a | retracts a at 17 for a | evicts 1 | waits a
        8 | decode b | a blocked 4 of 0 | waits a
    """)
    rounds.end_transfer("c")
    rounds.run_to_end()
    assert rounds.outputs["a"] == [1000 + position for position in range(12, 36)]


@pytest.mark.parametrize(
    ("host_blocks", "comes_back"),
    [
        (0, ["prefill a[4:16) | hit a 4 | evicts 7 | line held by a | waits n", "prefill a[16:25) | waits n"]),
        (40, ["prefill a[24:25) | hit a 24 | loads 5 for a | evicts 7 | waits n"]),
    ],
)
def test_a_victim_comes_back_before_new_prompts_with_or_without_a_host(host_blocks: int, comes_back: list[str]) -> None:
    """R7.1, R6.D: the peer has forgotten a's prompt: it is computed here, in rounds of its own, and n waits for it."""
    story = Rounds(role=Role.DECODE, pool=12, safe_steps=4, host_blocks=host_blocks, budget_tokens=12)
    Paper(story)
    story.submit(a=(20, 24), b=(20, 24))
    story.run(10)
    story.submit(n=(4, 2))
    story.run_to_end()
    lines = [line.partition(" | ")[2] for line in story.history().splitlines()]
    begin = lines.index(comes_back[0])
    assert lines[begin : begin + len(comes_back)] == comes_back
    assert lines[begin + len(comes_back)] == "decode a | peer prefills n[0:4) | evicts 2"
    assert all("n[" not in line for line in lines[:begin])
    assert story.outputs["a"] == [1000 + position for position in range(20, 44)]


def test_what_is_cached_here_is_not_asked_for(rounds: Rounds) -> None:
    """R4.4 on this role: of a prompt that shares four pages with an earlier one the peer sends the rest."""
    prompt = list(range(16))
    rounds.submit(tokens={"a": [*prompt, 1, 2]}, a=(18, 3))
    rounds.run_to_end()
    rounds.submit(tokens={"b": [*prompt, 7, 8, 9]}, b=(19, 3))
    rounds.run()
    rounds.expect("""
        1 | peer prefills a[0:18)
        2 | decode a
        3 | decode a
        4 | peer prefills b[16:19) | hit b 16
    """)
    work = rounds.plans[-1].remote_prefill
    assert work is not None
    assert [view(column).tolist() for column in (work.begins, work.ends, work.attempts)] == [[16], [19], [0]]
    rounds.run_to_end()
