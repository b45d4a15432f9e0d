"""Random programs on the C++ reference and on ours: the same rounds, but for the rows of docs/differences.md.

The short form of `python -m tools.compare_reference`, which says what it compares.
"""

import pytest

from control_plane.config import Role
from tools.compare_reference.compare import compare
from tools.compare_reference.draw import MIXES

SEEDS = 4
OVERLOAD_SEEDS = 14


@pytest.mark.parametrize("mix", MIXES)
def test_room_for_all_gives_the_same_rounds(mix: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Who is in the batch, in which order, with which tokens, and how many blocks each group gets and copies."""
    rounds = 0
    for seed in range(SEEDS):
        outcome = compare(seed, {"mix": mix, "role": Role.FUSED, "is_short": False, "decode_width": 1})
        assert outcome.is_explained, outcome
        rounds += outcome.rounds
    assert rounds > 100


FAMILIES = {
    "fused": (Role.FUSED, 0, False, 0.0),
    "fused with overlap": (Role.FUSED, 1, False, 0.0),
    "fused, declared outputs": (Role.FUSED, 0, False, 0.6),
    "fused with a host tier": (Role.FUSED, 0, True, 0.0),
    "fused with a host tier and overlap": (Role.FUSED, 1, True, 0.0),
    "decode with a host tier": (Role.DECODE, 0, True, 0.0),
    "prefill": (Role.PREFILL, 0, False, 0.0),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_overload_gives_the_same_rounds(family: str, capfd: pytest.CaptureFixture[str]) -> None:
    """R5, R6, R7: batch, order, victims, readmissions, and blocks stored under each guard, loaded and cleared."""
    role, depth, has_host, declares = FAMILIES[family]
    retractions = loaded = stored = 0
    for seed in range(OVERLOAD_SEEDS):
        outcome = compare(
            seed,
            {
                "mix": "f",
                "role": role,
                "is_short": True,
                "decode_width": 1,
                "overlap_depth": depth,
                "has_host": has_host,
                "declares": declares,
                "packed": False,
            },
        )
        assert outcome.is_explained, outcome
        retractions += outcome.retractions
        loaded += outcome.loaded_blocks
        stored += outcome.stored_blocks
    assert (retractions > 0) == (role is not Role.PREFILL)
    assert (loaded > 0) == (stored > 0) == has_host
