"""What must hold always (scheduler rules, section 8), tried on random programs over the stamp model."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from control_plane import GroupKind
from tests.properties.programs import (
    Group,
    Leave,
    Program,
    Run,
    Setting,
    Step,
    Submit,
    settings_of_programs,
    steps_of_programs,
)


@given(setting=settings_of_programs(), steps=steps_of_programs)
def test_exactness_conservation_and_progress(setting: Setting, steps: list[Step]) -> None:
    """§8.1, 8.3, 8.4: tokens as if alone, books that add up after every step, and an end for everybody."""
    program = Program(setting)
    program.run(steps)
    program.check_tokens()
    program.check_books()


@given(
    setting=settings_of_programs(), steps=steps_of_programs, fail=st.sets(st.integers(1, 40), min_size=1, max_size=5)
)
def test_failing_forwards_cost_their_requests_only(setting: Setting, steps: list[Step], fail: set[int]) -> None:
    """§8.4 under faults: who is not in a failed forward says what it says alone, whoever shared its pages."""
    program = Program(setting, strict=False, fail_rounds=fail)
    program.run(steps)
    program.check_tokens()
    program.check_books()


@given(setting=settings_of_programs(), steps=steps_of_programs, order_seed=st.integers(0, 2**16))
def test_no_order_that_the_streams_allow_changes_a_token(setting: Setting, steps: list[Step], order_seed: int) -> None:
    """§8.4, 8.5: work that comes as late, and as badly ordered, as it may: same tokens, and the order is proven."""
    program = Program(setting, order_seed=order_seed)
    program.run(steps)
    program.check_tokens()
    program.check_books()


@given(
    setting=settings_of_programs(),
    steps=steps_of_programs,
    fail=st.sets(st.integers(1, 40), max_size=8),
    store_delay=st.integers(0, 6),
    order_seed=st.integers(0, 2**16),
)
def test_copies_that_fail_or_take_long_cost_nobody_a_token(
    setting: Setting, steps: list[Step], fail: set[int], store_delay: int, order_seed: int
) -> None:
    """§8.4 with a host tier: a failed copy fails itself alone; whoever read what it did not bring prefills again."""
    setting = structs.replace(setting, prefix_cache=True, host_blocks=setting.host_blocks or 30)
    program = Program(setting, fail_ops=fail, store_delay=store_delay, order_seed=order_seed)
    program.run(steps)
    program.check_tokens()
    program.check_books()


PROGRAM = """
import hashlib
from tests.properties.test_programs import fixed_program
print(hashlib.sha256(b"".join(fixed_program().plans)).hexdigest())
"""


def fixed_program() -> Program:
    """A program with sharing, growth, retraction, aborts and overlap."""
    setting = Setting(
        prefix_granularity=8,
        groups=(Group(GroupKind.FULL, 1), Group(GroupKind.SLIDING, 2, 3, window=6), Group(GroupKind.STATE, 1)),
        budget_tokens=24,
        batch=5,
        pool=11,
        overlap_depth=1,
        mixed=True,
        prefix_cache=True,
        safe_steps=4,
        max_overtakes=2,
        stop_probability=0.02,
    )
    steps: list[Step] = []
    for index in range(30):
        steps += [
            Submit(index % 2, index % 33, 1 + index % 11, None if index % 3 else 20, index % 2),
            Run(1 + index % 4),
        ]
        if index % 7 == 0:
            steps.append(Leave(index // 2))
    program = Program(setting)
    program.run(steps)
    return program


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_plans_do_not_depend_on_the_process(hash_seed: str) -> None:
    """§8.2: another process, another hash seed: the same bytes."""
    here = fixed_program()
    assert here.scheduler.stats().retractions > 0
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == hashlib.sha256(b"".join(here.plans)).hexdigest()
