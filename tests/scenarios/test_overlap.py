"""Stories of overlapped rounds: one more round is planned before the last one's result is known."""

import itertools

import pytest

from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from control_plane.testing.simulated_device import result_of


@pytest.mark.parametrize(("overlap_depth", "max_new_tokens"), list(itertools.product((0, 1), (1, 2, 5))))
def test_no_step_beyond_the_last_token(overlap_depth: int, max_new_tokens: int) -> None:
    """D1: rows per request are max_tokens - 1 after the prompt; one token never enters decode; no gaps in the batch."""
    story = Rounds(overlap_depth=overlap_depth)
    story.submit(a=(7, max_new_tokens), b=(5, max_new_tokens))
    story.run_to_end()
    decoded: dict[int, list[int]] = {}
    for plan in story.plans:
        if plan.forward is not None:
            for key in view(plan.forward.keys)[plan.forward.num_extends :].tolist():
                decoded.setdefault(key, []).append(plan.round)
    assert [len(decoded.get(key, [])) for key in (1, 2)] == [max_new_tokens - 1] * 2
    for rounds_of_key in decoded.values():
        assert rounds_of_key == list(range(rounds_of_key[0], rounds_of_key[0] + len(rounds_of_key)))
    assert [len(tokens) for tokens in story.outputs.values()] == [max_new_tokens] * 2


def test_two_rounds_are_out_at_once(rounds: Rounds) -> None:
    """Depth 1: the first decode is planned while the prompt's forward is still out."""
    rounds.configure(overlap_depth=1)
    rounds.submit(a=(6, 4))
    rounds.scheduler.next_plan()
    assert rounds.scheduler.has_room
    second = rounds.scheduler.next_plan()
    assert second.forward is not None
    assert view(second.forward.prefix_lengths).tolist() == [6]
    assert not rounds.scheduler.has_room


def test_an_abort_with_the_final_chunk_out_shows_nothing(rounds: Rounds) -> None:
    """D6: the client leaves while its last chunk is out: no token, one end, no decode row, nothing held."""
    rounds.configure(overlap_depth=1, budget_tokens=9, mixed=False)
    rounds.submit(a=(16, 8))
    rounds.run(2)
    rounds.abort("a")
    rounds.run(2)
    assert rounds.outputs["a"] == []
    assert rounds.reasons["a"] == "abort"
    assert "decode" not in rounds.history()
    assert rounds.scheduler.stats().used_blocks == 0


@pytest.mark.parametrize(
    ("granularity", "stop_at", "cache"), list(itertools.product((1, 4), range(1, 9), (True, False)))
)
def test_the_extra_step_of_a_stopped_request_is_dropped(granularity: int, stop_at: int, cache: bool) -> None:
    """D4: a stop token at output 1..8 with a step already out: its result reaches nobody, its pages come back once."""
    story = Rounds(P=granularity, overlap_depth=1, prefix_cache=cache, pool=64)
    prompt_tokens = 6
    stop = 1000 + prompt_tokens + stop_at - 1
    story.submit(a=(prompt_tokens, 20), stop_token_ids=[stop])
    story.run_to_end()
    assert story.outputs["a"] == [1000 + prompt_tokens + i for i in range(stop_at)]
    assert story.reasons["a"] == "stop"
    story.scheduler.clear_cache()
    assert story.scheduler.stats().free_blocks == 64


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_aborts_in_every_state_leave_nothing(overlap_depth: int) -> None:
    """R2.4, B8: aborts while waiting, between chunks, with the last chunk out, while decoding, and after the end."""
    for after in range(12):
        story = Rounds(overlap_depth=overlap_depth, budget_tokens=9, pool=12)
        story.submit(a=(20, 4), b=(20, 4))
        story.run(after)
        story.abort("a", "b")
        story.run(3)
        story.abort("a")
        story.run_to_end()
        stats = story.scheduler.stats()
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)


def test_a_result_that_comes_twice_or_too_late_changes_nothing(rounds: Rounds) -> None:
    """R2.4: the same landing delivered again, and one of a round that is long over."""
    rounds.submit(a=(6, 4))
    rounds.run(2)
    landed = result_of(rounds.plans[0])
    rounds.tell(landed, landed)
    rounds.run()
    rounds.tell(landed)
    rounds.run_to_end()
    assert rounds.outputs["a"] == [1006, 1007, 1008, 1009]


@pytest.mark.parametrize("mixed", [True, False])
def test_a_victim_with_a_forward_out_is_waited_for(mixed: bool) -> None:
    """D2, R5.4: with a step always out, nobody is thrown out before it landed: no token is doubled, none lost."""
    story = Rounds(overlap_depth=1, pool=12, budget_tokens=16, batch=3, mixed=mixed, safe_steps=4)
    story.submit(a=14, b=17, c=11)
    story.run_to_end()
    assert story.scheduler.stats().retractions > 0
    for name, key in story.keys.items():
        begin = {"a": 14, "b": 17, "c": 11}[name]
        assert story.outputs[name] == [key * 1000 + position for position in range(begin, 48)]
