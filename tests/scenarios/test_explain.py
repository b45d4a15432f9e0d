"""Why a request is where it is, in words."""

from control_plane.testing.rounds import Rounds


def test_every_standing_has_its_sentence(rounds: Rounds) -> None:
    """Waiting, blocked, behind a prompt that holds the line, prefilling, decoding, over."""
    rounds.configure(pool=12, budget_tokens=16, batch=4, mixed=False)
    rounds.submit(a=(8, 8), b=(20, 20), c=(30, 2), d=4)
    explain = rounds.begin().explain
    assert explain("a") == "waiting, first in line: not tried yet"
    rounds.run()
    assert explain("a") == "prefilled: its first decode step is next"
    assert explain("b") == ("waiting, first in line: group full lacks blocks (10 wanted, 8 to be had)")
    assert explain("nobody") == "unknown, or over"
    rounds.run(3)
    assert explain("a") == "decoding: 1 tokens out, complete at 16 in all"
    rounds.run_to_end()
    assert explain("a") == "unknown, or over"


def test_the_line_and_the_slots_are_named(rounds: Rounds) -> None:
    """Who waits behind an incomplete prompt is told its name; who waits for a slot, how many there are."""
    rounds.configure(pool=60, budget_tokens=16, batch=1)
    rounds.submit(long=(40, 2), short=(4, 2))
    rounds.run()
    explain = rounds.scheduler.explain
    assert explain("long") == "prefilling: 16 of 40 tokens scheduled"
    assert explain("short") == "waiting, first in line: the prompt of long holds the line"
    rounds.run(3)
    assert explain("short") == "waiting, first in line: all 1 slots are taken"


def test_a_retracted_request_says_so(rounds: Rounds) -> None:
    """It waits like a new prompt, but not as one."""
    rounds.configure(pool=12, budget_tokens=16, batch=2)
    rounds.submit(a=20, b=20)
    rounds.run(9)
    assert rounds.scheduler.explain("a").startswith("retracted, prefills again, first in line")
