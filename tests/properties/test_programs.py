"""What must hold always (scheduler rules, section 8), tried on random programs over the stamp model.

Every run checks §8.1 (books that add up, pools as new in the end), 8.2 (its recording replays), 8.3 (an end for
everybody), 8.4 (tokens as if alone, in whatever order the streams get on) and 8.5 (an order between all work).
"""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from msgspec import structs

from tests.properties.programs import check, programs, share
from tools.simulate.draw_setting import draw_setting
from tools.simulate.draw_steps import Climate, draw_climate
from tools.simulate.program import Group, Leave, Program, Run, Setting, Step, Submit
from tools.simulate.run import Outcome, run


def calm(random: Random) -> Climate:
    """Nothing fails."""
    return structs.replace(draw_climate(random), mishap_chance=0.0)


def rough(random: Random) -> Climate:
    """Forwards, stores, load-backs and pages fail, and how long things take keeps changing."""
    return structs.replace(draw_climate(random), mishap_chance=0.2, change_chance=0.2)


def with_host_tier(random: Random) -> Setting:
    """Copies between the tiers, in a pool that is short."""
    setting = draw_setting(random)
    return structs.replace(setting, prefix_cache=True, host_blocks=setting.host_blocks or 2 * setting.pool)


@share(3)
@given(program=programs(climate=calm))
def test_exactness_conservation_and_progress(program: Program) -> None:
    """§8: in calm weather nobody fails."""
    outcome = run(program)
    check(outcome)
    assert "error" not in outcome.figures.ends


@share(3)
@given(program=programs(climate=rough))
def test_what_fails_costs_its_own_requests_only(program: Program) -> None:
    """§8 under faults: who is not in a failed forward says what it says alone, whoever shared its pages."""
    check(run(program))


@share(3)
@given(program=programs(setting=with_host_tier, climate=rough))
def test_copies_that_fail_or_take_long_cost_nobody_a_token(program: Program) -> None:
    """§8.4 with a host tier: a failed copy fails itself alone; whoever read what it did not bring prefills again."""
    check(run(program))


PROGRAM = """
from tests.properties.test_programs import fixed_program
print(fixed_program().digest)
"""


def fixed_program() -> Outcome:
    """A program with sharing, growth, retraction, aborts and overlap."""
    setting = Setting(
        prefix_granularity=8,
        groups=(Group(), Group("sliding", fraction=2, packing=3, window=6), Group("state")),
        budget_tokens=24,
        batch=5,
        context_tokens=150,
        pool=11,
        overlap_depth=1,
        safe_steps=4,
        max_overtakes=2,
        stop_probability=0.02,
    )
    steps: list[Step] = []
    for index in range(30):
        limit = None if index % 3 else 20
        steps += [Submit(index % 2, index % 33, 1 + index % 11, limit, seed=index % 2), Run(1 + index % 4)]
        if index % 7 == 0:
            steps.append(Leave(index // 2))
    return run(Program(setting, tuple(steps)))


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_plans_do_not_depend_on_the_process(hash_seed: str) -> None:
    """§8.2: another process, another hash seed: the same bytes."""
    here = fixed_program()
    check(here)
    assert here.figures.retractions > 0
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == here.digest
