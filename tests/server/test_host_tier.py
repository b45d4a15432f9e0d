"""An engine whose pool is too small for its work, with and without a second tier in host memory."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing
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


@pytest.mark.parametrize("redact", [False, True], ids=["as it is", "redacted"])
async def test_overload_replays_in_another_process_with_another_hash_seed(redact: bool, tmp_path: Path) -> None:
    """R8.2: retractions and aborts, recorded in compressed parts, are planned again to the byte; also redacted."""
    record = tmp_path / "run.rounds"
    config = EngineConfig(
        model="stamp",
        max_context_tokens=512,
        device_blocks=33,
        safe_steps=16,
        record=str(record),
        record_part_bytes=4096,
        record_compress=True,
        record_redact=redact,
    )
    async with await AsyncEngine.start(config) as engine:

        async def given_up(prompt: list[int]) -> None:
            async with aclosing(engine.generate(prompt, SamplingParams(max_tokens=120, temperature=0))) as outputs:
                await anext(outputs)

        await asyncio.gather(*(_ids(engine, prompt) for prompt in PROMPTS), *(given_up(prompt) for prompt in PROMPTS))
        assert engine.stats().scheduler.retractions > 0
    assert (tmp_path / "run.0001.rounds").exists()
    command = [sys.executable, "-m", "tokenspeed", "trace", "replay", "--strict", str(record)]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    root = Path(__file__).parents[2]
    replayed = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "all are identical" in replayed.stdout
