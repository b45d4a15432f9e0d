"""Hybrids behind the real scheduler: what it plans for states and replay, and what the models then write."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from control_plane.messages import ExecutionPlan, NoteKind
from control_plane.messages.columns import view
from data_plane.model.base import ModelRunner
from data_plane.model.grouped import GroupedDecoder
from data_plane.model.grouped_runner import GroupedRunner
from data_plane.model.hf_hybrid import load_hybrid
from data_plane.model.recurrent import SHAPES, RecurrentDecoder
from tests.models.dense import greedy
from tests.models.hybrid_shapes import saved_hybrid
from tests.models.served import Served
from tests.models.shapes import generated
from tests.models.test_recurrent import prompts

PAGE = 16
NEW_TOKENS = 6
HYBRID = RecurrentDecoder(SHAPES["hybrid"])
REPLAY = RecurrentDecoder(SHAPES["hybrid-replay"])


def runner_of(decoder: GroupedDecoder, *, state_granularity: int = PAGE) -> ModelRunner:
    """A fresh runner over the same weights."""
    return GroupedRunner(decoder, name="small", block_granularity=PAGE, state_granularity=state_granularity)


@contextmanager
def serving(runner: ModelRunner, *, device_blocks: int = 400, overlap_depth: int = 0) -> Iterator[Served]:
    """The runner behind a scheduler, closed in the end."""
    served = Served(runner, prefix_granularity=PAGE, device_blocks=device_blocks, overlap_depth=overlap_depth)
    try:
        yield served
    finally:
        served.close()


def extends(plans: list[ExecutionPlan]) -> list[tuple[int, int, int, int]]:
    """Begin, end, replayed tokens and checkpoint of every extend, over all rounds."""
    found = []
    for batch in (plan.forward for plan in plans if plan.forward is not None):
        begins, lengths = view(batch.prefix_lengths), view(batch.input_lengths)
        replays, checkpoints = view(batch.replay_lengths), view(batch.checkpoints)
        for row in range(batch.num_extends):
            begin, length = int(begins[row]), int(lengths[row])
            found.append((begin, begin + length, int(replays[row]), int(checkpoints[row])))
    return found


def hits(plans: list[ExecutionPlan]) -> list[int]:
    """Tokens of every prefix hit."""
    return [note.numbers[0] for plan in plans for note in plan.notes if note.kind is NoteKind.HIT]


@pytest.mark.parametrize("state_granularity", [16, 4])
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_the_second_request_promotes_and_the_third_hits(state_granularity: int, overlap_depth: int) -> None:
    """A system prompt of 1,000 tokens: its last page boundary is 992. Outputs are those of cold runs (R4.5, R3.6)."""
    (system, *turns) = prompts(1, 1000, 20, 33, 47)
    asked = [system + turn for turn in turns]
    with serving(runner_of(HYBRID, state_granularity=state_granularity), overlap_depth=overlap_depth) as served:
        rounds = []
        for prompt in asked:
            before = len(served.plans)
            (output,) = served.serve(prompt, new_tokens=NEW_TOKENS)
            assert output == greedy(HYBRID, prompt, output)
            rounds.append(served.plans[before:])
    first, second, third = rounds
    assert extends(first)[-1] == (768, 1020, 0, 1008)
    assert extends(second)[-2:] == [(768, 992, 0, 0), (992, 1033, 0, 1024)]
    assert extends(third) == [(992, 1047, 0, 1040)]
    assert [hits(plans) for plans in rounds] == [[], [], [992]]


@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_a_hit_feeds_the_replayable_window_again(overlap_depth: int) -> None:
    """After a hit at 992 the 32 tokens before it are fed first, and the output is that of a cold run (R3.7)."""
    (system, *turns) = prompts(2, 1000, 40, 55)
    asked = [system + turn for turn in turns]
    with serving(runner_of(REPLAY), overlap_depth=overlap_depth) as served:
        (cold,) = served.serve(asked[0], new_tokens=NEW_TOKENS)
        before = len(served.plans)
        (warm,) = served.serve(asked[1], new_tokens=NEW_TOKENS)
        assert cold == greedy(REPLAY, asked[0], cold)
        assert warm == greedy(REPLAY, asked[1], warm)
        assert extends(served.plans[before:]) == [(960, 1055, 32, 0)]
        assert hits(served.plans[before:]) == [992]


@pytest.mark.parametrize("decoder", [HYBRID, REPLAY], ids=["hybrid", "hybrid-replay"])
@pytest.mark.parametrize("overlap_depth", [0, 1])
def test_a_crowd_in_a_small_pool_writes_what_each_would_alone(decoder: RecurrentDecoder, overlap_depth: int) -> None:
    """Shared beginnings, evictions and retractions: six requests, and room for two of them."""
    (system, *turns) = prompts(3, 70, 5, 20, 33, 41, 60, 90)
    asked = [system[: 30 + 8 * index] + turn for index, turn in enumerate(turns)]
    with serving(runner_of(decoder, state_granularity=8), device_blocks=20, overlap_depth=overlap_depth) as served:
        outputs = served.serve(*asked, new_tokens=40, declared=False)
        again = served.serve(*asked, new_tokens=40, declared=False)
        kinds = {note.kind for plan in served.plans for note in plan.notes}
    assert outputs == again == [greedy(decoder, prompt, output) for prompt, output in zip(asked, outputs, strict=True)]
    assert NoteKind.EVICTED in kinds
    assert NoteKind.RETRACTED in kinds


def test_a_family_of_transformers_is_served_with_hits() -> None:
    """Qwen3-Next with a system prompt that three requests share."""
    folder = saved_hybrid("qwen3_next")
    (system, *turns) = prompts(4, 100, 20, 33, 47)
    asked = [[6 + token % 290 for token in system + turn] for turn in turns]
    with serving(runner_of(load_hybrid(folder, device="cpu", dtype="auto"))) as served:
        for prompt in asked:
            assert served.serve(prompt, new_tokens=NEW_TOKENS) == [generated(folder, prompt, NEW_TOKENS)]
        assert hits(served.plans) == [96]
