"""Stories of pools that are too small for the work: nobody swaps places for ever, nobody is named twice in a round."""

import itertools
import random

import pytest

from control_plane.messages import NoteKind
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def computed_tokens(story: Rounds) -> int:
    """Tokens that forwards computed, over all plans."""
    batches = [plan.forward for plan in story.plans if plan.forward is not None]
    return sum(int(view(batch.input_lengths).sum()) for batch in batches)


def retractions(story: Rounds) -> dict[int, list[int]]:
    """By key, how many tokens each victim had known, in order."""
    known: dict[int, list[int]] = {}
    for plan in story.plans:
        for note in plan.notes:
            if note.kind is NoteKind.RETRACTED:
                known.setdefault(note.key, []).append(note.numbers[0])
                assert note.numbers[2] == len(known[note.key]), "a retraction counts once"
    return known


@pytest.mark.parametrize(
    ("host_blocks", "overlap_depth", "mixed"), list(itertools.product((0, 40), (0, 1), (True, False)))
)
def test_two_that_outgrow_the_pool_do_not_swap_for_ever(host_blocks: int, overlap_depth: int, mixed: bool) -> None:
    """A14: two of 20 + 24 tokens in 12 blocks, windows of 4 steps: both end after few retractions.

    All that was computed is prompt and output, and one prefill for each retraction.
    """
    story = Rounds(pool=12, safe_steps=4, host_blocks=host_blocks, overlap_depth=overlap_depth, mixed=mixed)
    Paper(story)
    story.submit(a=(20, 24), b=(20, 24))
    story.run_to_end(limit=200)
    for name, key in story.keys.items():
        assert story.outputs[name] == [key * 1000 + position for position in range(20, 44)]
    victims = retractions(story)
    assert all(len(known) <= -(-24 // 4) for known in victims.values())
    again = sum(sum(known) for known in victims.values())
    assert computed_tokens(story) <= 2 * (20 + 24) + again


@pytest.mark.parametrize("seed", range(100))
def test_small_pools_and_many_requests(seed: int) -> None:
    """A13: random requests over pools of 6 to 12 blocks: a plan names each at most once, and retractions count by one.

    What is kept of a request is bounded by its tokens and retractions; everybody ends; the books are as new.
    """
    draw = random.Random(seed)
    pool = draw.randint(6, 12)
    story = Rounds(
        pool=pool,
        batch=draw.randint(2, 4),
        budget_tokens=draw.randint(8, 24),
        overlap_depth=draw.randint(0, 1),
        mixed=draw.random() < 0.5,
        safe_steps=draw.choice([1, 4, 4096]),
        host_blocks=draw.choice([0, 3, 12, 40]),
    )
    Paper(story)  # and the plan checker: a request at most once, budget and batch kept
    sizes = {}
    for index in range(6):
        prompt_tokens = draw.randint(1, 2 * pool)
        sizes[f"r{index}"] = prompt_tokens, draw.randint(1, 4 * pool - prompt_tokens)
        story.submit(tokens={f"r{index}": draw_prompt(draw, prompt_tokens)}, **{f"r{index}": sizes[f"r{index}"]})
        story.run(draw.randint(0, 6))
    longest_chain = max((len(request.chain.digests) for request in story.scheduler.requests.values()), default=0)
    assert longest_chain <= pool
    story.run_to_end()
    assert [len(story.outputs[name]) for name in sizes] == [size[1] for size in sizes.values()]
    assert sum(map(len, retractions(story).values())) == story.scheduler.stats().retractions
    assert story.scheduler.clear_cache(also_host=True)
    assert story.scheduler.stats().free_blocks == pool


def draw_prompt(draw: random.Random, length: int) -> list[int]:
    """One of two texts that others share, and then something of its own."""
    shared = draw.randint(0, length)
    base = draw.choice([1, 1001])
    return [*range(base, base + shared), *(draw.randrange(5000, 9000) for _ in range(length - shared))]
