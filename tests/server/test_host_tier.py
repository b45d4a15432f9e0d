"""An engine whose pool is too small for its work, with and without a second tier in host memory."""

import asyncio
from pathlib import Path

import pytest

from control_plane.rounds.replay import replay
from tokenspeed import AsyncEngine, EngineConfig, SamplingParams

PROMPTS = [[index + 1, 2, 3, *range(4, 24)] for index in range(6)]


async def _ids(engine: AsyncEngine, prompt: list[int]) -> list[int]:
    params = SamplingParams(max_tokens=120, temperature=0)
    return [token async for output in engine.generate(prompt, params) for token in output.token_ids]


@pytest.mark.parametrize("host_memory_bytes", [None, 2**20], ids=["no host tier", "host tier"])
async def test_what_is_thrown_out_comes_back_and_says_the_same(host_memory_bytes: int | None, tmp_path: Path) -> None:
    """R5, R7 with all threads: six long outputs on too few blocks, each as if it ran alone; and replayed after."""
    async with await AsyncEngine.start(EngineConfig(model="stamp", max_context_tokens=512)) as roomy:
        alone = [await _ids(roomy, prompt) for prompt in PROMPTS]
    record = tmp_path / "run.rounds"
    config = EngineConfig(
        model="stamp",
        max_context_tokens=512,
        device_blocks=33,
        safe_steps=16,
        host_memory_bytes=host_memory_bytes,
        record=str(record),
    )
    async with await AsyncEngine.start(config) as crowded:
        outputs = await asyncio.gather(*(_ids(crowded, prompt) for prompt in PROMPTS))
        while (stats := crowded.stats().scheduler).copies_out:
            await asyncio.sleep(0)
        assert crowded.audit() == []
    assert outputs == alone
    assert stats.retractions > 0
    assert (stats.stored_blocks > 0) == (stats.loaded_blocks > 0) == (host_memory_bytes is not None)
    assert replay(record).difference is None
