"""What every test shares: how many random programs are tried, and that nothing leaves this machine."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from control_plane.testing import golden
from control_plane.testing.rounds import Rounds

# A name that a loader does not find must be an error at once, not a download.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before torch is loaded: workers that spin between operations take the cores that other threads need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core; two that both wanted all of them would wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tokenizers would start threads before a test forks or starts a server.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

common = settings(
    deadline=None,  # no test is timed
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a slow machine must not change the verdict
)
# The same programs in every run, so that a red run is red again. CONTRIBUTING.md says how to search widely.
settings.register_profile("ci", common, max_examples=200, derandomize=True)
settings.register_profile("nightly", common, max_examples=5000, stateful_step_count=200)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two habits of scenario tests: read the rounds, and accept a changed story."""
    parser.addoption("--golden-update", action="store_true", help="rewrite the texts of rounds.expect that differ")
    parser.addoption("--rounds", action="store_true", help="print the rounds of each scenario")


def pytest_configure(config: pytest.Config) -> None:
    golden.is_updating = config.getoption("--golden-update")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Iterator[Rounds]:
    """A story told in rounds: a scheduler with a scripted device, configured by the test."""
    story = Rounds()
    yield story
    if request.config.getoption("--rounds"):
        print("\n" + story.history())
