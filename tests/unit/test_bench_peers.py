"""The comparison with other servers: what is asked, what is counted, and which way its ratios point."""

from tools.bench.peers import Contender, Turn, describe, prompts

OURS = Contender("tokenspeed", "float32", "http://127.0.0.1:1", "m")
PEER = Contender("vLLM", "float32", "http://127.0.0.1:2", "m")


def test_ratios_are_ours_over_the_peer_within_each_turn() -> None:
    """Twice as fast in one turn and half as fast in the other: the ratios of the turns, not of the medians."""
    turns = [
        Turn("tokenspeed", 8, 100.0, 0.5),
        Turn("vLLM", 8, 50.0, 1.0),
        Turn("vLLM", 8, 40.0, 1.0),
        Turn("tokenspeed", 8, 20.0, 0.7),
    ]
    text = describe([OURS, PEER], turns, [(0.0, 2.0, 1.0), (0.5, 1.0, 0.5)], "asked")
    assert "| 8 x vLLM, float32 | 45.0 | 1000 | 1.25 | 2.00, 0.50 |" in text
    assert "| 8 x tokenspeed, float32 | 60.0 | 600 |  |  |" in text
    assert "| 50% | 1000 | 0.50 |" in text


def test_prompts_share_no_first_page() -> None:
    """Nothing is hit in the prefix cache unless a share of the prompt is meant to be."""
    asked = prompts(0, 3, 32) + prompts(1, 3, 32)
    assert len({tuple(prompt[:16]) for prompt in asked}) == len(asked)
    assert all(len(prompt) == 32 for prompt in asked)
