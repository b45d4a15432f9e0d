"""`trace why` on constructed cases: it says the true reason, with names and numbers."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from control_plane.config import Role
from control_plane.messages import Retract
from control_plane.testing.rounds import Rounds
from tokenspeed.cli import app
from tokenspeed.trace.why import said_lines, why


class Story:
    """A recorded story, and what is said of its requests."""

    def __init__(self, rounds: Rounds, path: Path, **config: Any) -> None:
        rounds.record(path)
        rounds.configure(**config)
        self.path = path
        self.rounds = rounds
        self._is_whole = False

    def told(self, name: str) -> str:
        """The tables of a request, with single spaces. The story is over."""
        self.close()
        lines = [line for life in why(self.path, name) for line in said_lines(life)]
        return "\n".join(" ".join(line.split()) for line in lines)

    def close(self) -> None:
        """The recording is whole."""
        if not self._is_whole:
            self._is_whole = True
            self.rounds.close_record()


@pytest.fixture
def story(rounds: Rounds, tmp_path: Path) -> Any:
    """Makes a story of a configuration."""
    return lambda **config: Story(rounds, tmp_path / "story.rounds", **config)


def test_behind_an_incomplete_prefill(story: Any) -> None:
    """Head of line (R3.5): whose prefill it was, how much of it was left, and the phases with rounds and time."""
    case = story(budget_tokens=16)
    case.rounds.submit(a=(40, 4), b=(8, 3))
    case.rounds.run_to_end()
    assert case.told("b") == "\n".join(
        [
            "b (key 2): prompt 8 tokens, output 3 (at most 3); cached 0 (0 device, 0 host)",
            "",
            "phase rounds time why",
            "queued 1-2 5.0 ms 1: behind the incomplete prefill of a, 24 tokens to go",
            "prefilling 3 1.0 ms 3: admitted: nothing cached",
            "decoding 4-5 4.0 ms",
            "length after 5",
        ]
    )


def test_blocks_that_lack(story: Any) -> None:
    """Capacity: which group lacked how many blocks, who held them, and who gave them back in the end."""
    case = story(pool=12, budget_tokens=16, batch=4)
    case.rounds.submit(a=(20, 20), b=(24, 10), c=(4, 3))
    case.rounds.run_to_end()
    told = case.told("b")
    assert "queued 1-21 43.0 ms 1: behind the incomplete prefill of a, 4 tokens to go" in told
    assert "2: group full lacked 7 of 9 blocks: 2 could be had; held by a 10, c 2" in told
    assert "22: admitted, since a ended (length) after round 21, c ended (length) after round 4: nothing cached" in told


def test_retracted_and_back(story: Any) -> None:
    """R5.5, R7.1: for whom, why this one, what it waits for, when and why it comes back, and what is found again."""
    case = story(pool=12, budget_tokens=16, batch=2)
    case.rounds.submit(a=20, b=20)
    case.rounds.run(14)
    case.rounds.abort("b")
    case.rounds.run(4)
    told = case.told("a")
    assert "retracted 1 times, 16 tokens found again, 9 computed again" in told
    assert "7: group full lacked 1 of 1 blocks: 0 could be had; held by a 6, b 6" in told
    assert "7: nobody gives way before the forward of b has landed" in told
    assert (
        "retracted 8-14 14.0 ms 8: retracted for itself, which found no block, 6 blocks given back: "
        "it gives back most of 2 that could give way; waits like a new prompt"
    ) in told
    assert "9: group full lacked 7 of 7 blocks: 0 could be had; held by b 7" in told
    assert (
        "15: comes back: 12 blocks could be had, since b ended (abort) after round 14; "
        "16 tokens cached (16 on the device, 0 on the host)"
    ) in told


def test_an_incomplete_prefill_goes_first(story: Any) -> None:
    """R5.5: a prompt that is not complete gives way before those that are read; for whom is said."""
    case = story(pool=12, budget_tokens=16, batch=3)
    case.rounds.submit(a=8, b=36)
    case.rounds.run(4)
    told = case.told("b")
    assert "6 blocks given back: an incomplete prefill goes first, of 2 that could give way" in told


def test_the_store_gate(story: Any) -> None:
    """R5.4: nobody gives way while stores hold blocks; a victim waits for the acknowledgement of its own."""
    case = story(pool=16, budget_tokens=32, batch=3, host_blocks=60, keeps_stores=True)
    case.rounds.submit(a=20, b=20, c=8)
    case.rounds.run(14)
    case.rounds.end_stores()
    case.rounds.run(3)
    case.rounds.abort("b", "c")
    case.rounds.run(2)
    case.rounds.end_stores()
    case.rounds.run(2)
    told = case.told("a")
    assert "9: nobody gives way while copies are out: 0 loads, 4 stores that hold blocks" in told
    assert "comes back before new prompts" in told
    assert "waiting for ack 11-" in told
    assert "11: its pages are on their way to the host: it waits for the acknowledgement" in told
    assert "13: comes back: 16 blocks could be had, since c ended (abort) after round 12, b ended (abort)" in told


def test_the_budget(story: Any) -> None:
    """R3.3: who spent the round's tokens."""
    case = story(budget_tokens=16)
    case.rounds.submit(a=(8, 2), b=(8, 2), c=(8, 2))
    case.rounds.run_to_end()
    assert "1: the round's 16 tokens were spent, 0 were left: 8 by a, 8 by b" in case.told("c")


def test_slots_and_sealed_lines(story: Any) -> None:
    """Who has the slots, and whom nobody passes any more (R3.9)."""
    case = story(batch=3, pool=20, max_overtakes=1)
    case.rounds.submit(a=(8, 20), big=(60, 2), b=(4, 2), c=(4, 2), d=(4, 2))
    case.rounds.run_to_end()
    told = case.told("d")
    assert "1: all 3 slots are taken, by a, b, c" in told
    assert "2: 2 prompts passed big: nobody passes it any more" in told


def test_a_load_from_the_host(story: Any) -> None:
    """Cached tokens by tier, and the phase in which they are loaded."""
    case = story(pool=24, host_blocks=40, budget_tokens=100)
    prompt = list(range(32))
    case.rounds.submit(tokens={"a": [*prompt, 77]}, a=(33, 1))
    case.rounds.run_to_end()
    case.rounds.submit(x=(76, 1))
    case.rounds.run_to_end()
    case.rounds.submit(tokens={"b": [*prompt, 88]}, b=(33, 2))
    case.rounds.run_to_end()
    told = case.told("b")
    assert "cached 32 (16 device, 16 host)" in told
    found = "32 tokens cached (16 on the device, 16 on the host), loads 4 blocks from the host"
    assert f"loading 5 1.0 ms 5: admitted: {found}" in told
    assert told.index("loading") < told.index("prefilling")


def test_who_reads_rubbish_is_told(story: Any) -> None:
    """R7.5: what the device could not fill prefills again, and a failed load throws out whoever reads from it."""
    case = story(budget_tokens=16)
    case.rounds.submit(a=(8, 4))
    case.rounds.run(3)
    case.rounds.land_all()
    case.rounds.deliver(Retract(case.rounds.keys["a"]))
    case.rounds.run_to_end()
    assert "the device could not fill its pages; 11 tokens are computed again" in case.told("a")


def test_a_failed_load_is_told(story: Any) -> None:
    """E8: whoever had the blocks of a failed load in its table prefills again, and reads why."""
    case = story(host_blocks=20, fail_ops=(2,))
    prompt = list(range(16))
    case.rounds.submit(tokens={"a": [*prompt, 77]}, a=(17, 1))
    case.rounds.run_to_end()
    assert case.rounds.scheduler.clear_cache()
    case.rounds.submit(tokens={"b": [*prompt, 88]}, b=(17, 2))
    case.rounds.run_to_end()
    assert "it read pages that were never written" in case.told("b")


def test_decodes_without_a_round(story: Any) -> None:
    """R6.F, unmixed: prefills have the round to themselves."""
    case = story(mixed=False, budget_tokens=16)
    case.rounds.submit(a=(8, 6))
    case.rounds.run(2)
    case.rounds.submit(b=(24, 2))
    case.rounds.run_to_end()
    assert "prefills have the round to themselves: b" in case.told("a")


def test_waiting_for_the_peer(story: Any) -> None:
    """Roles P and D: until the peer answers, while it reads the pages, and while it writes them."""
    case = story(role=Role.PREFILL, keeps_transfers=True)
    case.rounds.submit(a=(8, 4))
    case.rounds.run(3)
    case.rounds.end_transfer("a")
    told = case.told("a")
    assert "waiting for ack" in told
    assert told.endswith("transferred after 2")


def test_of_a_name_that_came_twice_both_are_told(story: Any) -> None:
    """B7: names need not be unique; keys are, and `#2` asks for one."""
    case = story()
    case.rounds.submit(a=(8, 2))
    case.rounds.run_to_end()
    case.rounds.submit(a=(4, 2))
    case.rounds.run_to_end()
    told = case.told("a")
    assert told.index("a (key 1): prompt 8") < told.index("a (key 2): prompt 4")
    assert case.told("#2").startswith("a (key 2): prompt 4")


def test_the_command(story: Any) -> None:
    """A table for people, JSON for programs, and who is there when the name is wrong."""
    case = story(budget_tokens=16)
    case.rounds.submit(a=(40, 4), b=(8, 3))
    case.rounds.run_to_end()
    case.close()
    said = CliRunner().invoke(app, ["trace", "why", str(case.path), "b"])
    assert said.exit_code == 0
    assert "behind the incomplete prefill of a" in said.stdout
    said = CliRunner().invoke(app, ["trace", "why", str(case.path), "b", "--json"])
    assert '"phase": "queued"' in said.stdout
    said = CliRunner().invoke(app, ["trace", "why", str(case.path), "nobody"])
    assert said.exit_code == 2
    assert "the first are: a, b" in said.stderr
