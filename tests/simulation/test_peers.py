"""Programs on two engines: one prefills, the other decodes, and pages travel between them."""

import pytest

from tools.simulate.program import Drop, Fail, Group, Latency, Leave, Peer, Program, Run, Setting, Submit, Withhold
from tools.simulate.run import run, simulate

PAIR = Setting(peer=Peer(budget_tokens=8, overlap_depth=1), groups=(Group(), Group("sliding", window=6)), pool=64)
CROWD = tuple(Submit(own_tokens=9 + index, max_new_tokens=12) for index in range(3))


def test_a_prompt_moves_and_is_decoded_elsewhere() -> None:
    """Both engines take part, and what clients read is what one engine alone would say."""
    outcome = run(Program(PAIR, (Latency(2, 1, transfer=2), *CROWD)))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 3}
    assert outcome.figures.retractions == 0


def test_the_decoding_engine_recovers_by_itself() -> None:
    """Its pool is too small for what it is sent: it retracts, prefills again, and needs its peer no more."""
    setting = Setting(peer=Peer(pool=64), pool=14, safe_steps=1)
    outcome = run(Program(setting, tuple(Submit(own_tokens=10 + index) for index in range(4))))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 4}
    assert outcome.figures.retractions > 0


@pytest.mark.parametrize(
    "mishap",
    [Fail("page"), Fail("forward", peer=True), Withhold(peer=True), Drop(1)],
    ids=["a page", "its forward", "withheld", "dropped"],
)
def test_a_peer_that_fails_costs_time_only(mishap: Fail | Withhold | Drop) -> None:
    """What the peer does not send is prefilled where it is decoded."""
    well = run(Program(PAIR, CROWD))
    badly = run(Program(PAIR, (*CROWD, Run(2), mishap)))
    assert badly.failure is None
    assert badly.figures.ends == {"length": 3}
    assert badly.digest != well.digest


def test_without_recomputation_a_failed_transfer_ends_its_request() -> None:
    """So it was configured: the client gets an error, and nobody else notices."""
    setting = Setting(peer=Peer(), recompute_failed_transfers=False)
    outcome = run(Program(setting, (Fail("page"), *CROWD)))
    assert outcome.failure is None
    assert outcome.figures.ends == {"error": 1, "length": 2}


@pytest.mark.parametrize("rounds", range(1, 9))
def test_clients_leave_at_any_moment_of_a_transfer(rounds: int) -> None:
    """Before, while and after pages travel: one outcome, and every page comes back to its pool."""
    outcome = run(Program(PAIR, (Latency(2, 1, transfer=1), *CROWD, Run(rounds), Leave(0), Leave(2))))
    assert outcome.failure is None
    assert outcome.figures.ends == {"abort": 2, "length": 1}


def test_seeds_draw_pairs_as_well() -> None:
    """Among the first seeds are runs on two engines."""
    outcomes = [simulate(seed, rounds=20) for seed in range(12)]
    assert [outcome.failure for outcome in outcomes if outcome.failure] == []
    assert any(outcome.program.setting.peer is not None for outcome in outcomes)
    assert any(outcome.program.setting.peer is None for outcome in outcomes)


def test_a_lone_prompt_on_packed_pages_gets_through() -> None:
    """8.3: seed 1012, shrunk: several groups' blocks share one of the pool's, which is small. It begins again, once."""
    peer = Peer(budget_tokens=7, batch=1, pool=12, host_blocks=18)
    groups = (Group(fraction=2), Group(packing=3), Group(packing=2))
    program = Program(
        Setting(
            groups=groups,
            budget_tokens=1,
            batch=1,
            context_tokens=160,
            pool=12,
            safe_steps=4096,
            stop_probability=0.0,
            peer=peer,
        ),
        (
            Submit(shared_tokens=52, max_new_tokens=1),
            Submit(own_tokens=8, max_new_tokens=1),
            Submit(max_new_tokens=1),
            Submit(shared_tokens=87, max_new_tokens=1),
            Submit(shared_tokens=35, own_tokens=37, max_new_tokens=1),
        ),
    )
    outcome = run(program)
    assert outcome.failure is None, outcome.failure
