"""News that comes twice, out of order, too late or not at all; forwards that fail in the middle; pools at the bound."""

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from control_plane import Role, Scheduler
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.messages import ExtendResult, RemotePrefillDone, WriteBackDone
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_events
from control_plane.rounds.trace import FrameKind, TraceReader
from tools.simulate.__main__ import main
from tools.simulate.draw_setting import longest_request
from tools.simulate.program import (
    Fail,
    GiveUp,
    Group,
    Hold,
    Latency,
    Peer,
    Program,
    Repeat,
    Run,
    Setting,
    Step,
    Submit,
    Tell,
)
from tools.simulate.run import run
from tools.simulate.world import World

PRESSED = Setting(pool=12, host_blocks=40, overlap_depth=1, safe_steps=8)
PAIR = Setting(peer=Peer(budget_tokens=8, overlap_depth=1), groups=(Group(), Group("sliding", window=6)), pool=64)
CROWD = tuple(Submit(own_tokens=4 + index) for index in range(4))


class Awaited:
    """A scheduler that waits for round 3 and for the first attempt of request 1."""

    def void_keys(self, round_number: int) -> frozenset[int]:
        return frozenset()

    def awaits_round(self, round_number: int) -> bool:
        return round_number == 3

    def awaits_peer(self, key: int, attempt: int) -> bool:
        return (key, attempt) == (1, 0)


@pytest.mark.parametrize(
    "told",
    [ExtendResult(3, pack([1]), pack([1]), pack([9])), RemotePrefillDone(1, 0, pack([9]))],
    ids=["round", "peer"],
)
def test_what_is_told_twice_is_read_once(told: ExtendResult | RemotePrefillDone) -> None:
    """R2.4: both at once, or the second when the first was taken: its client gets one token."""
    rules = StopRules()
    rules.add(1, StopRule(stop_token_ids=(), max_new_tokens=10))
    _, outputs = commit([told, told], rules, Awaited())
    assert [output.tokens for output in outputs] == [[9]]
    late = structs.replace(told, round=2) if isinstance(told, ExtendResult) else structs.replace(told, attempt=1)
    assert commit([late], rules, Awaited())[1] == []


@pytest.mark.parametrize("setting", [PRESSED, PAIR], ids=["fused", "prefill and decode"])
@pytest.mark.parametrize("news", ["forward", "store", "load", "transfer"])
def test_news_that_comes_twice_changes_nothing(setting: Setting, news: str) -> None:
    """R2.4: the same plans, and everybody says what it would have said."""
    repeats: list[Step] = [Repeat(news), Repeat(news, peer=True), Run(3)] * 6  # type: ignore[arg-type]
    outcome = run(Program(setting, (*CROWD, *repeats)))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 4}


@pytest.mark.parametrize("setting", [PRESSED, PAIR], ids=["fused", "prefill and decode"])
@pytest.mark.parametrize("news", ["forward", "store", "load", "transfer"])
@pytest.mark.parametrize("is_lost", [False, True])
def test_what_does_not_end_holds_up_nobody_for_ever(setting: Setting, news: str, is_lost: bool) -> None:
    """R2.4, 8.3: when it ends at last all get their tokens; clients that give up before are rid of their requests."""
    hold = Hold(news, is_lost=is_lost)  # type: ignore[arg-type]
    outcome = run(Program(setting, (*CROWD, Run(2), hold, Run(200), Submit(own_tokens=5, max_new_tokens=3))))
    assert outcome.failure is None
    assert outcome.figures.ends.get("error", 0) == 0
    assert sum(outcome.figures.ends.values()) == 5
    if not is_lost:
        assert outcome.figures.ends == {"length": 5}


@pytest.mark.parametrize("groups", [(Group(),), (Group(), Group("sliding", window=9))], ids=["full", "sliding, too"])
def test_a_load_that_never_ends_costs_its_round_only(groups: tuple[Group, ...]) -> None:
    """R7.5, E8: the device gives rounds up, one after the other; others go on, and all say what they would have."""
    setting = structs.replace(PRESSED, groups=groups, pool=12 * len(groups))
    well = run(Program(setting, CROWD))
    badly = run(Program(setting, (*CROWD, *([GiveUp(), Run(8)] * 4))))
    assert well.figures.loaded_blocks > 0
    assert badly.failure is None, badly.failure
    assert badly.figures.ends == {"length": 4}
    assert badly.figures.loaded_blocks > well.figures.loaded_blocks


def test_stores_end_out_of_order(tmp_path: Path) -> None:
    """Each is acknowledged at its own time, and no page is lost by it."""
    world = World(PRESSED, tmp_path)
    world.run((Latency(store=2, spread=9), *CROWD))
    assert {story.reason for story in world.stories} == {"length"}
    frames = TraceReader(world.engines[Role.FUSED].recording)
    events = [event for frame in frames if frame.kind is FrameKind.EVENTS for event in decode_events(frame.payload)]
    ops = [event.op for event in events if isinstance(event, WriteBackDone)]
    assert any(later < earlier for earlier, later in pairwise(ops))


@pytest.mark.parametrize("what", ["abort", "finish", "retract", "bootstrapped", "landed", "sent", "failed"])
@pytest.mark.parametrize("peer", [False, True])
def test_news_of_a_request_that_is_over_changes_nothing(what: str, peer: bool) -> None:
    """R2.4: whatever it says, on either engine."""
    late = Tell(0, what, peer=peer)  # type: ignore[arg-type]
    steps = (Submit(max_new_tokens=2), Run(30), late, Submit(own_tokens=9, max_new_tokens=4), Run(2), late)
    outcome = run(Program(PAIR, steps))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 2}


def test_half_a_forward_ends_all_of_its_requests() -> None:
    """What the first half wrote is not believed either; who comes later is served."""
    half = Fail("half a forward")
    outcome = run(Program(PRESSED, (*CROWD, Run(2), half, Run(3), Submit(shared_tokens=8, max_new_tokens=4))))
    assert outcome.failure is None
    assert outcome.figures.ends == {"error": 4, "length": 1}


@pytest.mark.parametrize("kind", ["full", "sliding", "state"])
@pytest.mark.parametrize("packing", [1, 3])
@pytest.mark.parametrize("has_peer", [False, True])
def test_every_pool_from_the_smallest_serves_the_longest_request_that_it_accepts(
    kind: str, packing: int, has_peer: bool
) -> None:
    """R3.8: block by block; a prompt of all but one token, beside others that press; one token more is refused."""
    group = Group(kind, window=9 if kind == "sliding" else 0, packing=packing)  # type: ignore[arg-type]
    served = 0
    for pool in range(4, 20, 1 if packing == 1 and not has_peer else 3):
        peer = Peer(pool=pool, host_blocks=pool) if has_peer else None
        setting = Setting(groups=(Group(), group), pool=pool, context_tokens=64, host_blocks=pool, peer=peer)
        longest = longest_request(setting)
        if longest < 4:
            continue
        served += 1
        longest_prompt = Submit(own_tokens=longest - 1, max_new_tokens=1)
        undeclared = Submit(own_tokens=longest // 2)
        too_long = structs.replace(longest_prompt, own_tokens=longest)
        outcome = run(Program(setting, (undeclared, longest_prompt, too_long, undeclared)))
        assert outcome.failure is None, outcome.failure
        assert outcome.figures.ends == {"length": 3}
        assert outcome.figures.refused == 1
    assert served > 2


def test_a_long_search_is_one_command_and_one_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress with the seed to go on with; in the end what was run; a failure is told shrunk, as a test."""
    assert main(["--rounds", "120", "--each", "40"]) == 0
    said = capsys.readouterr().out
    assert "of 120 rounds" in said
    assert "failed: none" in said
    assert "rounds by role and groups" in said

    monkeypatch.setattr(Scheduler, "void_keys", lambda self, round_number: frozenset())
    assert main(["--seed", "3", "--rounds", "2000", "--each", "100", "--most-runs", "40"]) == 1
    said = capsys.readouterr().out
    assert "FAILED (tokens)" in said
    assert "shrunk from" in said
    assert "def test_seed_" in said
