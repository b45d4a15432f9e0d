"""Random programs on pools that are too small, on both schedulers: who gives way, who comes back, what is copied.

Ours runs by the reference's rules where the two differ on purpose (`their_rules.py`; `differences.md` says why): all
the rest must agree, round by round. Full groups; others differ in what they store and when their blocks slide out.
"""

import random

import pytest

from control_plane.config import Role
from tests.reference.programs import Program
from tests.reference.settings import draw_overload
from tests.reference.their_rules import reference_rules

SEEDS = 60
FAMILIES = {
    "fused": (Role.FUSED, 0, False, 0.0),
    "fused with overlap": (Role.FUSED, 1, False, 0.0),
    "fused, declared outputs": (Role.FUSED, 0, False, 0.6),
    "fused with a host tier": (Role.FUSED, 0, True, 0.0),
    "fused with a host tier and overlap": (Role.FUSED, 1, True, 0.0),
    "decode": (Role.DECODE, 0, False, 0.0),
    "decode with a host tier": (Role.DECODE, 0, True, 0.0),
    "prefill": (Role.PREFILL, 0, False, 0.0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_overload_gives_the_same_rounds(family: str, capfd: pytest.CaptureFixture[str]) -> None:
    """R5, R6, R7: batch, order, victims, readmissions, and blocks stored under each guard, loaded and cleared."""
    role, depth, has_host, declares = FAMILIES[family]
    rounds = retractions = loaded = stored = 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        program = Program(draw, *draw_overload(draw, role=role, depth=depth, has_host=has_host, declares=declares))
        with reference_rules():
            program.run()
        rounds += len(program.history)
        retractions += program.ours.scheduler.stats().retractions
        loaded += sum(sum(view.loaded) for view, _ in program.history)
        stored += sum(sum(view.stored) + sum(view.given_away) for view, _ in program.history)
    assert rounds > 1000
    assert (retractions > 0) == (role is not Role.PREFILL)
    assert (loaded > 0) == (stored > 0) == has_host
