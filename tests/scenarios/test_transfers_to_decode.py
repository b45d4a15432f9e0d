"""Stories of pages that a peer writes here, and of what becomes of them when one of the two gives up (F)."""

import pytest

from control_plane.config import Role
from control_plane.messages import Abort, Bootstrapped, RemotePrefillDone, TransferFailed
from control_plane.messages.columns import pack
from control_plane.testing.rounds import Rounds
from tests.scenarios.paper import Paper


def decoding_engine(**config: object) -> Rounds:
    """A story of role D whose transfers end when they are told to; the paper device follows the peer's writes."""
    story = Rounds(role=Role.DECODE, keeps_transfers=True, **config)
    Paper(story)
    return story


@pytest.mark.parametrize("failure", ["", "the peer stopped after three pages"])
def test_destination_pages_stay_taken_while_the_peer_may_write(failure: str) -> None:
    """F1: a's client leaves as its pages arrive, b needs just as many: it gets them when the peer has let go.

    Whether the transfer then ends well or not; and if the writer was late, b's rows are not what it wrote.
    """
    story = decoding_engine(pool=6)
    story.submit(a=(20, 3))
    story.run()
    story.land_all()
    story.deliver(Abort(story.keys["a"]))
    assert not story.scheduler.requests
    stats = story.scheduler.stats()
    assert (stats.used_blocks, stats.transfers_out) == (6, 1)
    story.submit(b=(20, 3))
    story.run(2)
    story.end_transfer("a", failure=failure)
    story.run()
    story.expect("""
        1 | peer prefills a[0:20)
        - | b blocked 6 of 0 | line sealed behind b | waits b
        - | waits b
        2 | peer prefills b[0:20)
    """)
    story.land_all()
    story.end_transfer("b")
    story.run_to_end()
    assert story.reasons == {"a": "abort", "b": "length"}
    assert story.outputs == {"a": [], "b": [2020, 2021, 2022]}


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_peer_that_fails_before_it_wrote_ends_the_request(recomputes: bool) -> None:
    """F3 a, b: P gives up before D knows it, or while the prompt waits for room: an error at once, with its reason."""
    story = decoding_engine(pool=6, recompute_failed_transfers=recomputes)
    story.submit(x=(20, 3))
    story.submit(a=(20, 3), bootstraps=False)
    story.submit(b=(20, 3))
    story.run(2)
    story.deliver(*(TransferFailed(story.keys[name], 0, f"{name} was aborted there") for name in "ab"))
    assert story.reasons == {"a": "error", "b": "error"}
    assert story.messages == {"a": "a was aborted there", "b": "b was aborted there"}
    assert list(story.scheduler.requests) == [story.keys["x"]]
    story.deliver(Bootstrapped(story.keys["a"]))
    story.land_all()
    story.end_transfer("x")
    story.run_to_end()
    assert story.outputs["x"] == [1020, 1021, 1022]


def test_a_transfer_that_fails_ends_its_request(rounds: Rounds) -> None:
    """F3 c, F4 without recompute: a write of a's transfer raised: its client reads why, its pages and slot are free.

    Nothing is decoded over its half-written pages; b, whose transfer went well, never notices.
    """
    Paper(rounds)
    rounds.configure(role=Role.DECODE, keeps_transfers=True, recompute_failed_transfers=False)
    rounds.submit(a=(20, 3), b=(6, 3))
    rounds.run(2)
    rounds.land_all()
    rounds.end_transfer("a", failure="the third write raised")
    assert (rounds.reasons["a"], rounds.messages["a"]) == ("error", "the third write raised")
    assert rounds.scheduler.stats().running == 1
    rounds.end_transfer("b")
    rounds.run_to_end()
    rounds.expect("""
        1 | peer prefills a[0:20) | waits b
        2 | peer prefills b[0:6)
        3 | decode b
        4 | decode b
    """)
    assert rounds.outputs == {"a": [], "b": [2006, 2007, 2008]}
    assert rounds.scheduler.stats().used_blocks == 0


def test_a_transfer_that_fails_is_computed_here(rounds: Rounds) -> None:
    """F4 with recompute: a prefills here, alone in its rounds; pages that the peer left half-written are not hit."""
    Paper(rounds)
    rounds.configure(role=Role.DECODE, keeps_transfers=True, budget_tokens=12)
    prompt = list(range(20))
    rounds.submit(tokens={"a": prompt}, a=(20, 3), b=(6, 3))
    rounds.run(2)
    rounds.land_all()
    rounds.end_transfer("b")
    rounds.end_transfer("a", failure="the third write raised")
    rounds.submit(tokens={"c": prompt}, c=(20, 3))
    rounds.run(4)
    rounds.expect("""
        1 | peer prefills a[0:20) | waits b
        2 | peer prefills b[0:6)
        3 | prefill a[0:12) | line held by a | waits c
        4 | prefill a[12:20) | waits c
        5 | decode a b | peer prefills c[16:20) | hit c 16
        6 | decode a b
    """)
    rounds.land_all()
    rounds.end_transfer("c")
    rounds.run_to_end()
    assert rounds.outputs == {"a": [1020, 1021, 1022], "b": [2006, 2007, 2008], "c": [3020, 3021, 3022]}
    assert set(rounds.reasons.values()) == {"length"}


def prefix_on_host(story: Rounds, prefix: list[int]) -> None:
    """v's prompt is stored as v is thrown out; then v and w leave, and the device's cache is dropped."""
    story.submit(tokens={"v": [*prefix, 77]}, v=(17, 20), w=(10, 42))
    story.run(2)
    story.land_all()
    story.end_transfer("v")
    story.end_transfer("w")
    story.run(20)
    assert "retracts v at" in story.history()
    story.deliver(Abort(story.keys["v"]), Abort(story.keys["w"]))
    story.land_all()
    assert story.scheduler.clear_cache()
    story.skip()


def test_a_success_of_an_attempt_that_is_over_is_dropped() -> None:
    """F5: r's load-back fails while the peer writes the rest: attempt 1 begins here, into other pages.

    Attempt 0 reports success when r has decoded already: its pages are let go of, its token is nobody's.
    """
    prefix = list(range(16))
    story = decoding_engine(pool=13, host_blocks=40, batch=3, safe_steps=1, fail_ops={2})
    prefix_on_host(story, prefix)
    story.submit(tokens={"r": [*prefix, 99]}, r=(17, 3))
    story.run()
    story.land_all()
    assert story.scheduler.stats().used_blocks == 5  # of attempt 0, whose writer lives
    story.run(2)
    assert story.scheduler.stats().used_blocks == 10
    story.end_transfer("r")
    assert story.scheduler.stats().used_blocks == 5
    story.run_to_end()
    lines = [line.partition(" | ")[2] for line in story.history().splitlines()[-4:]]
    assert lines == [
        "peer prefills r[16:17) | hit r 16 | loads 4 for r",
        "prefill r[16:17) | hit r 16 | loads 4 for r",
        "decode r",
        "decode r",
    ]
    assert story.outputs["r"] == [3017, 3018, 3019]
    assert story.reasons["r"] == "length"


@pytest.mark.parametrize("succeeds", [True, False])
def test_stale_events_of_transfers_change_nothing(succeeds: bool) -> None:
    """F5, R2.4: an end of attempt 0 after a withheld plan, one of an attempt that never was, one after the landing."""
    story = decoding_engine(lose={1})
    story.submit(a=(20, 4))
    key = 1

    def stale(attempt: int) -> RemotePrefillDone | TransferFailed:
        return RemotePrefillDone(key, attempt, pack([7])) if succeeds else TransferFailed(key, attempt, "late")

    story.run()
    story.deliver(stale(3))
    story.land_all()
    story.deliver(stale(0))
    story.run(2)
    story.deliver(stale(0), stale(3))
    story.run_to_end()
    story.expect("""
        1 | peer prefills a[0:20)
        2 | prefill a[0:20)
        3 | decode a
        4 | decode a
        5 | decode a
    """)
    assert story.outputs["a"] == [1020, 1021, 1022, 1023]
    assert story.reasons == {"a": "length"}
