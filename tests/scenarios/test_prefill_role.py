"""Stories of an engine that prefills for a peer: prompts in, pages out, nobody thrown out (R6.P, R5.7, F)."""

import pytest

from control_plane.config import CacheGroupConfig, Role
from control_plane.messages import Abort, Bootstrapped, TransferFailed, TransferSucceeded
from control_plane.messages.columns import view
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


@pytest.fixture
def rounds(rounds: Rounds) -> Rounds:
    """A story of this role, whose peer reads every page that it is told of, and must find it computed."""
    rounds.configure(role=Role.PREFILL)
    Paper(rounds)
    return rounds


def test_completed_prompts_leave_before_others_come(rounds: Rounds) -> None:
    """R6.P: hand-overs first, then the resident prompt's next chunk, then new prompts; no decode, one token each."""
    rounds.submit(a=(8, 5), b=(20, 5), c=(4, 5))
    rounds.run(4, budget_tokens=12)
    rounds.expect("""
        1 | prefill a[0:8) b[0:4) | line held by b | waits c
        2 | prefill b[4:16) | hands over a[0:8) | line held by b | waits c
        3 | prefill b[16:20) c[0:4)
        4 | hands over b[0:20) c[0:4)
    """)
    rounds.run_to_end()
    assert rounds.outputs == {"a": [1008], "b": [2020], "c": [3004]}
    plan = rounds.plans[3].remote_decode
    assert plan is not None
    assert view(plan.tokens).tolist() == [2020, 3004]
    assert view(plan.attempts).tolist() == [0, 0]


def test_a_prompt_done_in_one_round_is_handed_over_in_the_next(rounds: Rounds) -> None:
    """F9: a pool for two, six prompts of a round each, transfers that take two rounds: all six pass, in order.

    Each is handed over in the round after its own, however much waits; nobody is thrown out.
    """
    rounds.configure(pool=12, budget_tokens=16, batch=6, keeps_transfers=True)
    rounds.submit(**dict.fromkeys("abcdef", (16, 1)))
    ends_at: dict[str, int] = {}
    for turn in range(14):
        rounds.run()
        for name in [name for name, end in ends_at.items() if end == turn]:
            rounds.end_transfer(name)
            del ends_at[name]
        work = rounds.plans[-1].remote_decode
        for key in view(work.keys).tolist() if work is not None else []:
            ends_at["abcdef"[key - 1]] = turn + 2
    rounds.expect("""
        1 | prefill a[0:16) | waits b c d e f
        2 | prefill b[0:16) | hands over a[0:16) | waits c d e f
        3 | hands over b[0:16) | c blocked 5 of 2 | line sealed behind c | waits c d e f
        - | waits c d e f
        4 | prefill c[0:16) | evicts 2 | waits d e f
        5 | prefill d[0:16) | hands over c[0:16) | evicts 4 | waits e f
        6 | hands over d[0:16) | e blocked 5 of 2 | line sealed behind e | waits e f
        - | waits e f
        7 | prefill e[0:16) | evicts 4 | waits f
        8 | prefill f[0:16) | hands over e[0:16) | evicts 4
        9 | hands over f[0:16)
    """)
    rounds.run_to_end()
    assert rounds.scheduler.stats().retractions == 0


def test_nobody_is_thrown_out_here(rounds: Rounds) -> None:
    """R5.7: the peer still reads a, and b has no room: it waits for that transfer as long as it takes."""
    rounds.configure(pool=12, keeps_transfers=True)
    rounds.submit(a=(40, 5), b=(20, 5))
    rounds.run(20)
    assert rounds.scheduler.stats().waiting == 1
    rounds.end_transfer("a")
    rounds.skip()
    rounds.run(2)
    rounds.expect("""
        3 | prefill b[0:20) | evicts 4
        4 | hands over b[0:20)
    """)
    assert rounds.scheduler.stats().retractions == 0


def test_a_lone_prompt_with_a_scattered_hit_begins_again(rounds: Rounds) -> None:
    """8.3, R5.7: what b shares with a lies beside what a alone had. When that is gone b holds more parents than packed
    blocks need, and waits for nobody: it gives back its own, once, and is complete before c is looked at.
    """
    groups = (
        CacheGroupConfig("f", block_granularity=2, packing=4),
        CacheGroupConfig("h", block_granularity=4, packing=8),
    )
    rounds.configure(groups=groups, pool=5, budget_tokens=16, batch=1)
    shared = list(range(11))
    tokens = {"a": [*shared, *range(100, 118)], "b": [*shared, *range(200, 220)], "c": [*shared, 300]}
    rounds.submit(tokens=tokens, a=(29, 1), b=(31, 1), c=(12, 1))
    rounds.run_to_end()
    rounds.expect("""
        1 | prefill a[0:16) | line held by a | waits b c
        2 | prefill a[16:29) | no slot | waits b c
        3 | hands over a[0:29) | no slot | waits b c
        - | no slot | waits b c
        4 | prefill b[8:24) | hit b 8 | evicts 10 | line held by b | waits c
        5 | prefill b[0:16) | b blocked 4 of 5 | restarts b at 24 | line held by b | waits c
        6 | prefill b[16:31) | no slot | waits c
        7 | hands over b[0:31) | no slot | waits c
        - | no slot | waits c
        8 | prefill c[8:12) | hit c 8 | evicts 5
        9 | hands over c[0:12)
    """)
    assert rounds.scheduler.stats().retractions == 1


def test_a_lone_prompt_placed_among_what_others_left_begins_again(rounds: Rounds) -> None:
    """8.3, R5.7: no hit is needed for that: only as much of a is evicted as b's first chunk needs, and b fills gaps."""
    groups = (
        CacheGroupConfig("f", block_granularity=2, packing=2),
        CacheGroupConfig("g", block_granularity=4, packing=8),
        CacheGroupConfig("h", block_granularity=4, packing=6),
    )
    rounds.configure(groups=groups, pool=8, budget_tokens=16, batch=1)
    rounds.submit(a=(23, 1), b=(23, 1))
    rounds.run_to_end()
    rounds.expect("""
        1 | prefill a[0:16) | line held by a | waits b
        2 | prefill a[16:23) | no slot | waits b
        3 | hands over a[0:23) | no slot | waits b
        - | no slot | waits b
        4 | prefill b[0:16) | evicts 8 | evicts 1 | line held by b
        5 | prefill b[0:16) | b blocked 4 of 11 | restarts b at 16 | line held by b
        6 | prefill b[16:23)
        7 | hands over b[0:23)
    """)


def test_two_long_prompts_do_not_interleave(rounds: Rounds) -> None:
    """A8 on this role: b computes nothing before a is complete and handed over; 128 prompt tokens in all."""
    rounds.configure(pool=20, budget_tokens=16)
    rounds.submit(a=(64, 1), b=(64, 1))
    rounds.run_to_end()
    fed = sum(int(view(plan.forward.input_lengths).sum()) for plan in rounds.plans if plan.forward)
    assert fed == 128
    history = rounds.history()
    assert history.index("hands over a[0:64)") < history.index("b[0:")
    assert rounds.scheduler.stats().retractions == 0


def test_no_output_is_prepaid_where_none_is_made(rounds: Rounds) -> None:
    """R3.4: a prompt of 16 that declared 64 tokens holds its own page and the slot of the first decode step."""
    rounds.configure(P=16, pool=20)
    rounds.submit(a=(16, 64))
    rounds.run()
    assert rounds.scheduler._coordinator.tables.held(0, 0) == 2


@pytest.mark.parametrize("when", ["chunk out", "last chunk out", "handed over", "transfer running", "ack on its way"])
@pytest.mark.parametrize("succeeds", [True, False])
def test_an_abort_in_every_state(when: str, succeeds: bool) -> None:
    """F2: the client gives up. Pages that the peer may be reading go when the transfer has ended, others at once.

    Once, whichever way it ends, and however often it is said.
    """
    story = Rounds(role=Role.PREFILL, pool=12, keeps_transfers=True, budget_tokens=9)
    Paper(story)
    story.submit(a=(16, 5))
    story.run({"chunk out": 1, "last chunk out": 2}.get(when, 3))
    key = story.keys["a"]
    ended = TransferSucceeded(key, 0) if succeeds else TransferFailed(key, 0, "the peer left")
    if when in ("transfer running", "ack on its way"):
        story.land_all()
    story.deliver(*([Abort(key), ended] if when == "ack on its way" else [Abort(key)]))
    assert not story.scheduler.requests
    is_read = when in ("handed over", "transfer running")
    stats = story.scheduler.stats()
    assert (stats.used_blocks, stats.transfers_out) == ((5, 1) if is_read else (0, 0))
    story.land_all()
    story.deliver(ended, ended)
    stats = story.scheduler.stats()
    assert (stats.used_blocks, stats.transfers_out) == (0, 0)
    story.deliver(TransferSucceeded(key, 0))
    story.run(2)
    assert len(story.outputs["a"]) == (0 if "out" in when else 1)
    assert story.scheduler.stats().retractions == 0


def test_pages_under_a_reader_are_nobody_elses(rounds: Rounds) -> None:
    """F2, R2.4: a left while its peer reads: b waits for the end of that transfer, and its pages are read unharmed."""
    rounds.configure(pool=8, keeps_transfers=True)
    rounds.submit(a=(24, 5))
    rounds.run(2)
    rounds.land_all()
    rounds.deliver(Abort(rounds.keys["a"]))
    rounds.submit(b=(12, 5))
    rounds.run(3)
    rounds.end_transfer("a")  # the paper device checks what the peer has read
    rounds.run()
    rounds.expect("""
        1 | prefill a[0:24)
        2 | hands over a[0:24)
        - | b blocked 4 of 1 | line sealed behind b | waits b
        - | waits b
        - | waits b
        3 | prefill b[0:12) | evicts 2
    """)


def test_a_cancel_in_the_last_step_counts(rounds: Rounds) -> None:
    """F8: the prompt's only forward is out when its client leaves: its pages are free when that lands, not later."""
    rounds.configure(pool=12)
    rounds.submit(a=(16, 1))
    rounds.run()
    rounds.abort("a")
    rounds.land()
    stats = rounds.scheduler.stats()
    assert (stats.used_blocks, stats.transfers_out, len(rounds.scheduler.requests)) == (0, 0, 0)
    rounds.run(2)
    rounds.expect("""
        1 | prefill a[0:16)
    """)
    assert rounds.reasons == {"a": "abort"}
    assert rounds.outputs["a"] == []


def test_a_prompt_waits_for_its_peer_to_know_of_it(rounds: Rounds) -> None:
    """R6.P, R2.3: before the two engines know each other nothing is computed; others pass; an abort is final there."""
    rounds.submit(a=(8, 5), c=(8, 5), bootstraps=False)
    rounds.submit(b=(8, 5))
    rounds.run()
    rounds.deliver(Abort(rounds.keys["c"]), Bootstrapped(rounds.keys["a"]), Bootstrapped(rounds.keys["c"]))
    rounds.run()
    rounds.expect("""
        1 | prefill b[0:8) | waits a c
        2 | prefill a[0:8) | hands over b[0:8)
    """)
    rounds.run_to_end()
    assert rounds.reasons["c"] == "abort"


def test_a_failed_transfer_ends_its_request_alone(rounds: Rounds) -> None:
    """F3 on this role: the peer gave up on a: it ends with an error and its pages are free; b's transfer goes on."""
    rounds.configure(keeps_transfers=True)
    rounds.submit(a=(8, 5), b=(8, 5))
    rounds.run(2)
    rounds.land_all()
    rounds.end_transfer("a", failure="the peer left")
    assert rounds.reasons["a"] == "error"
    assert list(rounds.scheduler.requests) == [rounds.keys["b"]]
    assert rounds.scheduler.stats().used_blocks == 3
    rounds.end_transfer("b")
    rounds.run_to_end()


def test_prompts_are_stored_and_loaded_here(rounds: Rounds) -> None:
    """R4.4 on this role: what one prompt left on the host the next one loads, and hands over with its own."""
    rounds.configure(host_blocks=40)
    prompt = list(range(16))
    rounds.submit(tokens={"a": [*prompt, 1]}, a=(17, 5))
    rounds.run_to_end()
    rounds.scheduler.clear_cache()
    rounds.submit(tokens={"b": [*prompt, 2]}, b=(17, 5))
    rounds.run_to_end()
    rounds.expect("""
        1 | prefill a[0:17)
        2 | hands over a[0:17)
        3 | prefill b[16:17) | hit b 16 | loads 4 for b
        4 | hands over b[0:17)
    """)


def test_others_keep_what_they_computed_when_a_forward_is_withheld(rounds: Rounds) -> None:
    """R4.10, R7.5, depth 1: b's table points at pages of a; b's forward is withheld: a is handed over all the same."""
    rounds.configure(budget_tokens=16, overlap_depth=1, lose={2}, keeps_transfers=True, batch=4)
    prompt = list(range(16))
    rounds.submit(tokens={"a": prompt, "b": [*prompt, *range(100, 130)]}, a=(16, 2), b=(46, 2))
    rounds.run(7)
    rounds.expect("""
        1 | prefill a[0:16) | waits b
        2 | prefill b[0:16) | line held by b
        3 | prefill b[16:32) | hands over a[0:16) | line held by b
        4 | prefill b[16:32) | hit b 16 | line held by b
        5 | prefill b[32:46)
        6 | hands over b[0:46)
    """)
    rounds.land_all()
    rounds.end_transfer("a")
    rounds.end_transfer("b")
    rounds.run_to_end()
