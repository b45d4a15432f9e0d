"""`tokenspeed plan`: what fits, told before anything is served, and true when it is."""

import subprocess
import sys

import pytest

from control_plane import CapacityModel, ConfigError
from tokenspeed import EngineConfig
from tokenspeed.assembly import full_house_blocks, scheduler_config
from tokenspeed.planning import plan_capacity


def _plan(**settings: object):  # type: ignore[no-untyped-def]
    return plan_capacity(EngineConfig(model="stamp", **settings), progress=lambda line: None)  # type: ignore[arg-type]


def test_a_plan_counts_tokens_and_requests() -> None:
    """256 blocks of 16 tokens: one request of 4096, or three of 1024 with their unaligned tails."""
    plan = _plan(device_blocks=256)
    assert plan.single_request_tokens == 4096
    assert plan.single_request_blocks == (256,)
    assert dict(plan.concurrent) == {1024: 3, 4096: 1}
    text = "\n".join(plan.lines())
    assert "pool: 256 LCM blocks of 256 B" in text
    assert "longest request: 4096 tokens" in text


def test_memory_becomes_blocks() -> None:
    """A size in bytes pays for the null block, too."""
    assert _plan(memory_bytes=1 << 20).specs.device_blocks == 4095


def test_without_a_size_the_pool_serves_a_full_house() -> None:
    """As many blocks as all requests at the longest context could use, and no more."""
    config = EngineConfig(model="stamp", max_batch_size=4, max_context_tokens=640)
    plan = plan_capacity(config, progress=lambda line: None)
    model = CapacityModel(scheduler_config(config, plan.specs))
    assert plan.specs.device_blocks == full_house_blocks(config, plan.specs.groups, 640)
    assert plan.specs.device_blocks == model.lcm_blocks(model.concurrent_group_blocks(4 * 640, 640))
    assert dict(plan.concurrent)[640] == 4


def test_what_cannot_work_is_refused() -> None:
    """Too little memory for a block is an error that says how much is needed."""
    with pytest.raises(ConfigError, match="memory_bytes=100 must be at least 512"):
        _plan(memory_bytes=100)


def test_an_engine_needs_its_assertions() -> None:
    """`python -O` would let a fault go on as wrong output: it is refused, with the fix."""
    program = "from tokenspeed import Engine, EngineConfig; Engine(EngineConfig(model='stamp'))"
    result = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "removes assertions: start it without" in result.stderr
