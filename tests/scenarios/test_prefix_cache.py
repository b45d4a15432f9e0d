"""Stories of the prefix cache: what hits, what is published when, what is evicted first."""

import itertools

import pytest

from control_plane import CacheGroupConfig
from control_plane.testing.rounds import Rounds


@pytest.mark.parametrize("prompt_tokens", [15, 16, 17])
def test_a_cached_prompt_still_computes_a_token(prompt_tokens: int) -> None:
    """C1, R4.2: the second run of a prompt hits whole pages and computes at least its last token."""
    story = Rounds(P=4)
    prompt = list(range(prompt_tokens))
    story.submit(tokens={"a": prompt}, a=(prompt_tokens, 2))
    story.run_to_end()
    story.skip()
    story.submit(tokens={"b": prompt}, b=(prompt_tokens, 2))
    story.run()
    hit = (prompt_tokens - 1) // 4 * 4
    story.expect(f"3 | prefill b[{hit}:{prompt_tokens}) | hit b {hit}")


def test_a_prompt_that_leaves_inside_a_page_hits_before_it(rounds: Rounds) -> None:
    """C8 for full groups: equal in the first 38 of 40 tokens: the hit is 36."""
    first = list(range(40))
    rounds.submit(tokens={"a": first}, a=(40, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"b": [*first[:38], 900, 901]}, b=(40, 1))
    rounds.skip()
    rounds.run()
    rounds.expect("""
        2 | prefill b[36:40) | hit b 36
    """)


def test_namespaces_share_nothing(rounds: Rounds) -> None:
    """R4.1, C3: the namespace is part of the chain, so the same tokens under another one are cold."""
    prompt = list(range(20))
    rounds.submit(tokens={"a": prompt}, namespace="one", a=(20, 1))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"b": prompt}, namespace="two", b=(20, 1))
    rounds.submit(tokens={"c": prompt}, namespace="one", c=(20, 1))
    rounds.run()
    rounds.expect("""
        2 | prefill b[0:20) c[16:20) | hit c 16
    """)


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_the_last_sampled_token_is_not_published(overlap_depth: int) -> None:
    """C12, R4.7: with pages of one token a follow-up hits everything but the last sampled token, overlapped or not."""
    story = Rounds(P=1, overlap_depth=overlap_depth, pool=64)
    story.submit(tokens={"a": [1, 2, 3, 4]}, a=(4, 2))
    story.run_to_end()
    story.submit(tokens={"b": [1, 2, 3, 4, *story.outputs["a"], 9]}, b=(7, 1))
    story.skip()
    story.run()
    story.expect("""
        3 | prefill b[5:7) | hit b 5
    """)


def test_eviction_takes_a_chain_from_its_end(rounds: Rounds) -> None:
    """C11, R4.9: three cached pages, one is needed: the last goes, and the prompt still hits the first two."""
    rounds.configure(pool=4)
    prompt = list(range(12))
    rounds.submit(tokens={"a": prompt}, a=(12, 1))
    rounds.run_to_end()
    rounds.submit(b=(5, 1))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"c": prompt}, c=(12, 1))
    rounds.run()
    rounds.expect("""
        3 | prefill c[8:12) | hit c 8 | evicts 1
    """)


def test_the_longest_unused_goes_first(rounds: Rounds) -> None:
    """R4.9: of two cached prompts the one that was used last stays."""
    rounds.configure(pool=6)
    one, other = list(range(8)), list(range(100, 108))
    rounds.submit(tokens={"a": one}, a=(8, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"b": other}, b=(8, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"c": [*one, 1]}, c=(9, 1))
    rounds.run_to_end()
    rounds.submit(d=(12, 1))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"e": [*one, 1], "f": [*other, 1]}, e=(9, 1), f=(9, 1))
    rounds.run()
    assert "hit e 8" in rounds.history()
    assert "hit f 8" not in rounds.history()


def test_hit_pages_are_secured_before_new_ones_are_taken(rounds: Rounds) -> None:
    """C10: four cached pages and two free ones: X and 7 more tokens hit all four and take the other two."""
    rounds.configure(pool=6)
    prompt = list(range(16))
    rounds.submit(tokens={"x": prompt}, x=(16, 1))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"y": [*prompt, *range(50, 57)]}, y=(23, 1))
    rounds.run()
    rounds.expect("""
        2 | prefill y[16:23) | hit y 16
    """)


def test_a_hit_that_leaves_no_room_waits(rounds: Rounds) -> None:
    """C10, second half: with two blocks held elsewhere the prompt waits; no matched page is evicted for it."""
    rounds.configure(pool=8)
    prompt = list(range(16))
    rounds.submit(tokens={"x": prompt}, x=(16, 1))
    rounds.run_to_end()
    rounds.submit(r=(4, 4))
    rounds.run()
    rounds.skip()
    rounds.submit(tokens={"y": [*prompt, *range(50, 65)]}, y=(31, 1))
    rounds.run()
    rounds.expect("""
        3 | decode r | y blocked 4 of 2 | waits y
    """)
    rounds.run_to_end()
    assert "hit y 16" in rounds.history()


def test_the_same_pages_computed_twice_are_kept_once(rounds: Rounds) -> None:
    """R4.10: two equal prompts in one round; the second one's pages are replaced by the first one's, and come free."""
    prompt = list(range(9))
    rounds.configure(pool=40)
    rounds.submit(tokens={"a": prompt, "b": prompt}, a=(9, 16), b=(9, 16))
    rounds.run()
    before = rounds.scheduler.stats().free_blocks
    rounds.run()
    assert rounds.scheduler.stats().free_blocks == before + 2


@pytest.mark.parametrize("abort_after", [1, 2, 3, 4])
def test_an_abort_between_chunks_frees_everything_once(abort_after: int) -> None:
    """B1: whichever chunk was the last, nothing stays held, and only pages before that chunk are cached."""
    story = Rounds(budget_tokens=8, batch=4, mixed=False)
    prompt = list(range(40))
    story.submit(tokens={"a": prompt}, a=(40, 4))
    story.run(abort_after)
    story.abort("a")
    story.run()
    stats = story.scheduler.stats()
    assert (stats.running, stats.used_blocks) == (0, 0)
    assert stats.cached_blocks <= 2 * (abort_after - 1) + 1
    story.submit(b=(8, 2))
    story.run_to_end()
    assert len(story.outputs["b"]) == 2
    assert story.outputs["a"] == []


@pytest.mark.parametrize("resubmit_after", [0, 1, 2])
def test_nothing_is_hit_that_was_not_computed(resubmit_after: int) -> None:
    """C4: an abort while chunk 3 is out; the same prompt again hits no token of that chunk, nor any later one."""
    story = Rounds(budget_tokens=16, overlap_depth=1, mixed=False)
    prompt = list(range(64))
    story.submit(tokens={"a": prompt}, a=(64, 4))
    story.run(3)
    story.abort("a")
    story.run(resubmit_after)
    story.submit(tokens={"b": prompt}, b=(64, 4))
    story.skip()
    story.run(4)
    hits = [int(part.split()[-1]) for part in story.history().split(" | ") if part.startswith("hit b")]
    assert hits
    assert max(hits) <= 32


def test_clearing_the_cache_gives_every_block_back(rounds: Rounds) -> None:
    """Conservation (§8.1): after all requests ended and the cache was cleared the pool is as new."""
    rounds.submit(**{name: (10 + index, 3) for index, name in enumerate("abcdef")})
    rounds.run_to_end()
    assert rounds.scheduler.stats().cached_blocks > 0
    rounds.scheduler.clear_cache()
    rounds.audit()
    assert rounds.scheduler.stats().free_blocks == 64


def test_granularities_that_divide_pass_the_prompt_sweep() -> None:
    """I2: P=8 with block granularities 8, 4, 2, 1 and packings: every prompt 1..40, twice, hits whole pages."""
    for granularity, packing in itertools.product((8, 4, 2, 1), (1, 3)):
        groups = (
            CacheGroupConfig("fine", block_granularity=granularity, packing=packing),
            CacheGroupConfig("coarse", block_granularity=8),
        )
        story = Rounds(P=8, groups=groups, pool=2000)
        for repeat, length in itertools.product("xy", range(1, 41)):
            name = f"{repeat}{length}"
            story.submit(tokens={name: range(length * 100, length * 100 + length)}, **{name: (length, 2)})
            story.run_to_end()
        assert "hit y40 32" in story.history()
        assert "hit y8 8" not in story.history()
