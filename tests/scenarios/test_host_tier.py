"""Stories of prefixes that the device lost and the host has: what is loaded, and who pays for it (R4.4)."""

from control_plane.messages.columns import count, view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def on_host_only(rounds: Rounds, **prompts: list[int]) -> None:
    """These prompts are computed, stored and gone from the device; the story goes on from there."""
    for name, prompt in prompts.items():
        rounds.submit(tokens={name: prompt}, **{name: (len(prompt), 1)})
        rounds.run_to_end()
    assert rounds.scheduler.clear_cache()
    rounds.skip()


def test_the_host_continues_where_the_device_stops(rounds: Rounds) -> None:
    """R4.4: the device still has four pages of the prefix, the host all eight: only the other four are loaded."""
    paper = Paper(rounds)
    rounds.configure(pool=24, host_blocks=40, budget_tokens=100)
    prompt = list(range(32))
    rounds.submit(tokens={"a": [*prompt, 77]}, a=(33, 1))
    rounds.run_to_end()
    rounds.submit(x=(76, 1))
    rounds.run_to_end()
    rounds.skip()
    rounds.submit(tokens={"b": [*prompt, 88]}, b=(33, 2))
    rounds.run()
    rounds.expect("""
        5 | prefill b[32:33) | hit b 32 | loads 4 for b | evicts 4
    """)
    rounds.run_to_end()
    assert paper.loads == ["5 4 full"]


def test_what_is_loaded_is_not_cleared(rounds: Rounds) -> None:
    """R4.4: the blocks of a load-back hold the host's bytes at once; only the one beyond the hit is zeroed."""
    Paper(rounds)
    rounds.configure(host_blocks=20)
    prompt = list(range(16))
    on_host_only(rounds, a=[*prompt, 77])
    rounds.submit(tokens={"b": [*prompt, 88]}, b=(17, 2))
    rounds.run()
    plan = rounds.plans[-1]
    (load,), (fresh,) = plan.load_backs, plan.zero
    assert (count(load.destinations), count(fresh.blocks)) == (4, 1)
    assert not set(view(load.destinations)) & set(view(fresh.blocks))


def test_two_prompts_of_a_round_share_one_load(rounds: Rounds) -> None:
    """R4.4: the second finds on the device, by name, what the first is about to load there."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=20)
    prompt = list(range(16))
    on_host_only(rounds, a=[*prompt, 77])
    rounds.submit(tokens={"b": [*prompt, 1], "c": [*prompt, 2]}, b=(17, 2), c=(17, 2))
    rounds.run()
    rounds.expect("""
        3 | prefill b[16:17) c[16:17) | hit b 16 | loads 4 for b | hit c 16
    """)
    rounds.run_to_end()
    assert paper.loads == ["3 4 full"]


def test_a_load_is_charged_to_the_admission(rounds: Rounds) -> None:
    """R4.4: a host hit of 4 pages and 2 of its own make 6 blocks: with 5 free the prompt waits and loads nothing."""
    Paper(rounds)
    rounds.configure(pool=8, host_blocks=20, batch=2)
    prompt = list(range(16))
    on_host_only(rounds, a=[*prompt, 77])
    rounds.submit(r=(9, 3))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt, 1, 2, 3, 4, 5, 6]}, b=(22, 2))
    rounds.run(2)
    rounds.expect("""
        3 | prefill r[0:9)
        4 | decode r
        5 | decode r | b blocked 6 of 5 | waits b
        6 | prefill b[16:22) | hit b 16 | loads 4 for b
    """)
    rounds.run_to_end()


def test_host_hits_do_not_split_the_pool(rounds: Rounds) -> None:
    """A3: two prompts of 12 and 10 pages, six of each on the host, in a pool of 16: one waits and holds nothing.

    Both end, and each loads its prefix once.
    """
    paper = Paper(rounds)
    rounds.configure(pool=16, budget_tokens=16, host_blocks=40, batch=4)
    a, b = list(range(24)), list(range(100, 124))
    on_host_only(rounds, x=[*a, 77], y=[*b, 77])
    rounds.submit(tokens={"a": [*a, *range(200, 224)], "b": [*b, *range(300, 316)]}, a=(48, 1), b=(40, 1))
    rounds.run(2)
    assert rounds.scheduler.stats().running == 1
    rounds.run(2)
    rounds.expect("""
        7 | prefill a[24:40) | hit a 24 | loads 6 for a | line held by a | waits b
        8 | prefill a[40:48) | b blocked 11 of 3 | waits b
        9 | prefill b[24:40) | hit b 24 | loads 6 for b | evicts 7
        10
    """)
    rounds.run_to_end()
    assert paper.loads == ["7 6 full", "9 6 full"]
    assert rounds.scheduler.stats().retractions == 0


def test_a_host_hit_stays_where_it_is_until_it_is_loaded(rounds: Rounds) -> None:
    """E2: the host is full and its oldest pages are those being loaded: a store finds no room rather than take them.

    The prompt of 24 has 6 pages to store beside the 4 that are pinned in a pool of 6: the first two fit.
    """
    paper = Paper(rounds)
    rounds.configure(pool=24, host_blocks=6, budget_tokens=16, overlap_depth=1)
    prompt = list(range(16))
    on_host_only(rounds, a=[*prompt, 77])
    rounds.submit(c=(9, 1))
    rounds.run_to_end()
    assert rounds.scheduler.stats().host_used_blocks == 6
    rounds.skip()
    rounds.submit(tokens={"b": [*prompt, *range(200, 224)]}, b=(40, 1))
    rounds.run_to_end()
    assert paper.loads == ["6 4 full"]
    assert rounds.outputs["b"] == [rounds.keys["b"] * 1000 + 40]


def test_years_of_host_hits_in_a_full_host() -> None:
    """E2: 300 prompts that hit a host which is always full and must store pages of their own: no hit is ever lost.

    The device is cleared every few turns, so that what they share is on the host alone.
    """
    story = Rounds(pool=14, host_blocks=9, batch=3, budget_tokens=20, overlap_depth=1)
    Paper(story)
    for turn in range(300):
        base = turn % 3 % 2 * 100
        prompt = [*range(base, base + 16), *range(1000 + 10 * turn, 1009 + 10 * turn)]
        story.submit(tokens={f"r{turn}": prompt}, **{f"r{turn}": (25, 1 + turn % 3)})
        story.run(turn % 4)
        if turn % 5 == 4:
            story.run_to_end()
            story.scheduler.clear_cache()
    story.run_to_end()
    assert story.scheduler.stats().host_used_blocks == 9
    assert story.scheduler.stats().loaded_blocks > 150
    assert [len(story.outputs[f"r{turn}"]) for turn in range(300)] == [1 + turn % 3 for turn in range(300)]


def test_a_prefix_leaves_the_host_from_its_end(rounds: Rounds) -> None:
    """R4.9 on the host: room for two pages is made at the end of the oldest prefix, whose front can still be hit."""
    paper = Paper(rounds)
    rounds.configure(host_blocks=6)
    prompt = list(range(16))
    on_host_only(rounds, a=[*prompt, 77], b=[*range(100, 116), 77])
    rounds.submit(tokens={"c": [*prompt, 88]}, c=(17, 1))
    rounds.run()
    rounds.expect("""
        5 | prefill c[8:17) | hit c 8 | loads 2 for c
    """)
    rounds.run_to_end()
    assert paper.stores[:2] == ["2 pinned-until-ack 4 full", "4 pinned-until-ack 4 full"]
