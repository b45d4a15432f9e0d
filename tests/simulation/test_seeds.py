"""What must hold always (scheduler rules, section 8), tried on whatever the first seeds draw."""

import pytest

from tools.simulate.report import failure_report, summary_line
from tools.simulate.run import simulate
from tools.simulate.search import simulate_many
from tools.simulate.shrink import shrink

SEEDS = range(60)
SEEDS_A_TEST = 10
ROUNDS = 400


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::SEEDS_A_TEST])
def test_no_seed_violates_a_rule(first: int) -> None:
    """All mixes of groups, overlap depths, tiers and kinds of weather; a failure is told shrunk, as a test to paste."""
    outcomes = [simulate(seed, rounds=ROUNDS) for seed in range(first, first + SEEDS_A_TEST)]
    failed = [outcome for outcome in outcomes if outcome.failure]
    assert not failed, "\n".join([*map(summary_line, failed), failure_report(failed[0], shrink(failed[0]))])


def test_a_seed_is_the_same_in_every_process() -> None:
    """§8.2: another process, with another hash seed, is told the same and plans the same, to the byte."""
    seeds = range(8)
    elsewhere = {outcome.program.seed: outcome.digest for outcome in simulate_many(seeds, rounds=60, workers=1)}
    assert {seed: simulate(seed, rounds=60).digest for seed in seeds} == elsewhere
    assert len(set(elsewhere.values())) == len(seeds)


def test_the_drawn_world_is_full_of_trouble() -> None:
    """A search that meets no trouble proves nothing: these seeds retract, store, load, fail, leave and share."""
    figures = [simulate(seed, rounds=150).figures for seed in range(24)]
    assert sum(each.retractions for each in figures) > 50
    assert sum(each.stored_blocks for each in figures) > 500
    assert sum(each.loaded_blocks for each in figures) > 20
    assert sum(each.cached_tokens for each in figures) > 1000
    for reason in ("abort", "content", "error", "length", "stop"):
        assert sum(each.ends.get(reason, 0) for each in figures) > 5, reason
