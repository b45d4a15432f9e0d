"""The small hybrid: attention over blocks and recurrent states over snapshots write what the dense model writes."""

import numpy as np
import pytest
import torch

from control_plane.errors import ConfigError
from control_plane.messages import ForwardBatch
from control_plane.messages.columns import pack
from data_plane.batch.rows import Rows
from data_plane.model.grouped_runner import GroupedRunner
from data_plane.model.recurrent import SHAPES, RecurrentDecoder
from data_plane.model.recurrent_layers import scan
from data_plane.model.registry import load_model
from data_plane.recurrence.geometry import StatePart, state_geometry
from data_plane.recurrence.round_plan import StatePlan
from tests.models.dense import greedy
from tests.models.group_driver import GroupDriver, group_of

PAGE = 16
NEW_TOKENS = 8
DECODER = RecurrentDecoder(SHAPES["hybrid"])


def driver_of(*, state_granularity: int = PAGE, granularity: int = PAGE, seed: int = 0) -> GroupDriver:
    """A fresh runner over the same weights."""
    runner = GroupedRunner(DECODER, name="hybrid", block_granularity=granularity, state_granularity=state_granularity)
    return GroupDriver(runner, prefix_granularity=PAGE, seed=seed)


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    """Random prompts of these lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 512, size=length).tolist() for length in lengths]


@pytest.mark.parametrize(("granularity", "state_granularity"), [(16, 16), (16, 4), (4, 16), (8, 8), (16, 1)])
def test_random_chunks_and_checkpoints_write_what_the_dense_model_writes(
    granularity: int, state_granularity: int
) -> None:
    """Extends, decodes and checkpoints mixed at random, blocks scattered: every request's tokens are its own (R3.6)."""
    driver = driver_of(granularity=granularity, state_granularity=state_granularity, seed=granularity)
    asked = prompts(1, 1, 2, 16, 17, 40, 90)
    slots = [driver.start(prompt) for prompt in asked]
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=70, most_chunk=60)
    for slot, prompt in zip(slots, asked, strict=True):
        assert outputs[slot] == greedy(DECODER, prompt, outputs[slot]), f"{len(prompt)} tokens"


@pytest.mark.parametrize("state_granularity", [16, 4])
def test_one_forward_leaves_the_checkpoint_and_the_final_state(state_granularity: int) -> None:
    """A chunk of 45 with a checkpoint at 32 leaves the snapshots that chunks of 32 and 13 leave."""
    (prompt,) = prompts(2, 60)
    once, twice = (driver_of(state_granularity=state_granularity) for _ in range(2))
    a, b = once.start(prompt), twice.start(prompt)
    once.run({a: 45}, checkpoints={a: 32})
    twice.run({b: 32})
    twice.run({b: 13})
    for tokens in (32, 45):
        column = (tokens - 1) // state_granularity
        one = once.blocks(1)[once.tables[1][a, column]].view(np.float32)
        other = twice.blocks(1)[twice.tables[1][b, column]].view(np.float32)
        assert np.abs(one).max() > 0.1
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("state_granularity", [16, 4])
def test_a_prefix_is_shared_at_a_checkpoint(state_granularity: int) -> None:
    """Two requests begin at another's checkpoint while it goes on, and write what they would write alone."""
    driver = driver_of(state_granularity=state_granularity)
    (prefix, ending_a, ending_b, ending_c) = prompts(3, 48, 13, 1, 30)
    a = driver.start(prefix + ending_a)
    driver.run({a: 61}, checkpoints={a: 48})
    driver.run({a: 1})
    b, c = driver.start(prefix + ending_b), driver.start(prefix + ending_c)
    for slot in (b, c):
        driver.share(slot, owner=a, tokens=48)
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=30, most_chunk=11)
    for slot, ending in ((a, ending_a), (b, ending_b), (c, ending_c)):
        assert outputs[slot] == greedy(DECODER, prefix + ending, outputs[slot])


def test_a_prefix_outlives_who_computed_it() -> None:
    """The owner leaves and its other blocks go to someone else; the shared snapshot and rows stay."""
    driver = driver_of(state_granularity=4)
    (prefix, ending_a, ending_b, other) = prompts(4, 32, 20, 20, 70)
    a = driver.start(prefix + ending_a)
    driver.run({a: 52}, checkpoints={a: 32})
    b = driver.start(prefix + ending_b)
    driver.share(b, owner=a, tokens=32)
    driver.drop(a)
    c = driver.start(other)
    outputs = driver.finish(new_tokens=NEW_TOKENS, budget_tokens=64, most_chunk=64)
    assert outputs[b] == greedy(DECODER, prefix + ending_b, outputs[b])
    assert outputs[c] == greedy(DECODER, other, outputs[c])


def test_a_request_that_decodes_across_a_boundary_leaves_its_snapshot_behind() -> None:
    """The state at a page's end is not written again by the decode that follows: another request may start there."""
    driver = driver_of()
    (prompt,) = prompts(5, 30)
    a = driver.start(prompt)
    driver.run({a: 30})
    for _ in range(6):
        driver.run({a: 1})
    known = driver.requests[a].known
    b = driver.start(known[:34])
    driver.share(b, owner=a, tokens=32)
    driver.finish(new_tokens=NEW_TOKENS, budget_tokens=16, most_chunk=16)
    output = driver.requests[b].output[:NEW_TOKENS]
    assert output == greedy(DECODER, known[:34], output)


def test_the_output_depends_on_the_state() -> None:
    """Without its snapshot a request writes something else: the tests above would notice a lost state."""
    driver = driver_of()
    (prompt,) = prompts(6, 40)
    a = driver.start(prompt)
    driver.run({a: 33})
    driver.blocks(1)[driver.tables[1][a, 32 // PAGE]] = 0
    driver.finish(new_tokens=NEW_TOKENS, budget_tokens=16, most_chunk=16)
    output = driver.requests[a].output[:NEW_TOKENS]
    assert output != greedy(DECODER, prompt, output)


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
def test_a_scan_in_pieces_is_the_recurrence_token_by_token(tokens: int) -> None:
    """Whatever the length is, against the definition in double precision."""
    torch.manual_seed(tokens)
    query, key = torch.randn(2, 3, tokens, 5), torch.randn(2, 3, tokens, 5)
    value, log_decay = torch.randn(2, 3, tokens, 7), -torch.rand(2, 3, tokens) * 4
    matrix = before = torch.randn(2, 3, 5, 7)
    reads, after = scan(query, key, value, log_decay, before)
    matrix = matrix.double()
    for t in range(tokens):
        added = key[:, :, t, :, None].double() * value[:, :, t, None, :].double()
        matrix = log_decay[:, :, t, None, None].double().exp() * matrix + added
        expected = (query[:, :, t, None, :].double() @ matrix)[:, :, 0]
        torch.testing.assert_close(reads[:, :, t].double(), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(after.double(), matrix, rtol=1e-3, atol=1e-4)


def test_the_same_shape_has_the_same_weights_and_disturbs_nobody() -> None:
    """Weights come from the shape's seed; torch's own random numbers go on as if nothing happened."""
    torch.manual_seed(1)
    undisturbed = torch.rand(3)
    torch.manual_seed(1)
    again = RecurrentDecoder(SHAPES["hybrid"])
    assert torch.equal(torch.rand(3), undisturbed)
    for one, other in zip(DECODER.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_snapshots_share_parents_with_attention_blocks() -> None:
    """A snapshot is a whole number of attention blocks, or an even part of one: a parent is no larger than either."""
    part = StatePart((100,), torch.float32)
    assert state_geometry(((part,),), beside_bytes=4096).block_bytes == 512
    assert state_geometry(((part,) * 9,), beside_bytes=4096).block_bytes == 4096
    assert state_geometry(((part,) * 15,), beside_bytes=4096).block_bytes == 8192


def test_states_of_several_dtypes_lie_side_by_side() -> None:
    """Each part of each layer has bytes of its own, however odd the one before it is."""
    odd, wide = StatePart((3,), torch.bfloat16), StatePart((2, 2), torch.float64)
    geometry = state_geometry(((odd, wide), (odd,)), beside_bytes=256)
    blocks = torch.zeros(2, geometry.block_bytes, dtype=torch.uint8)
    views = [view for layer in geometry.views(blocks) for view in layer]
    for number, view in enumerate(views, start=1):
        view[1] = number
    assert [view[1].tolist() for view in views] == [[1.0] * 3, [2.0] * 4, [3.0] * 3]
    assert not blocks[0].any()


def test_the_blocks_of_a_round_are_where_the_contract_says() -> None:
    """Input before the first token, checkpoint and end each in the column of their last token (R3.6)."""
    table = torch.arange(100, dtype=torch.int32).view(2, 50)
    rows = _rows(slots=[1, 0, 0], extends=2, begins=[128, 0, 7], lengths=[868, 5, 1], checkpoints=[896, 0])
    plan = StatePlan(rows, table, block_granularity=32)
    hit, cold = plan.extends
    assert hit.source is not None
    assert hit.source.tolist() == [50 + 3]
    assert [(scan.begin, scan.end, scan.target.tolist()) for scan in hit.scans] == [
        (0, 768, [50 + 27]),
        (768, 868, [50 + 31]),
    ]
    assert cold.source is None
    assert [(scan.begin, scan.end, scan.target.tolist()) for scan in cold.scans] == [(868, 873, [0])]
    assert (plan.decodes.begin, plan.decodes.end) == (873, 874)
    assert plan.decodes.sources.tolist() == plan.decodes.targets.tolist() == [0]


def test_replay_beside_states_and_checkpoints_outside_stop_the_round() -> None:
    """A state cannot take its tokens twice, and a checkpoint is inside of what is fed."""
    table = torch.zeros(1, 8, dtype=torch.int32)
    with pytest.raises(AssertionError, match=r"checkpoints \[16\] outside"):
        StatePlan(_rows(slots=[0], extends=1, begins=[16], lengths=[8], checkpoints=[16]), table, block_granularity=16)
    replaying = _rows(slots=[0], extends=1, begins=[16], lengths=[8], checkpoints=[0], replays=[4])
    with pytest.raises(AssertionError, match="replay beside a state group"):
        StatePlan(replaying, table, block_granularity=16)


def test_a_token_that_is_no_token_touches_nothing() -> None:
    """The round is refused with the range, before blocks are written."""
    driver = driver_of()
    a = driver.start([5, 512, 7])
    with pytest.raises(ValueError, match="input_ids reach from 5 to 512, vocabulary is 512"):
        driver.run({a: 3})
    assert not driver.blocks(1)[driver.tables[1][a, 0]].any()


def test_the_groups_of_the_hybrid() -> None:
    """Attention and states by layer; a state block may span less than an attention block."""
    runner = driver_of(state_granularity=4).runner
    full, state = group_of(runner, "full"), group_of(runner, "state")
    assert (full.layers, full.block_granularity) == ((1, 3), 16)
    assert (state.layers, state.block_granularity) == ((0, 2), 4)
    assert state.block_bytes % full.block_bytes == 0


def _rows(
    *,
    slots: list[int],
    extends: int,
    begins: list[int],
    lengths: list[int],
    checkpoints: list[int],
    replays: list[int] | None = None,
) -> Rows:
    return Rows(
        ForwardBatch(
            keys=pack(range(1, len(slots) + 1)),
            slots=pack(slots),
            num_extends=extends,
            input_lengths=pack(lengths),
            prefix_lengths=pack(begins),
            prefill_lengths=pack([1000] * extends),
            replay_lengths=pack(replays or [0] * extends),
            checkpoints=pack(checkpoints),
            input_ids=pack([1] * sum(lengths[:extends])),
            decode_width=1,
        )
    )


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_small_models_have_names(name: str) -> None:
    """Random weights, no tokenizer, float32 and nothing else."""
    loaded = load_model(name, block_granularity=PAGE, progress=lambda line: None)
    assert loaded.tokenizer_path is None
    assert (loaded.runner.facts.name, loaded.runner.facts.dtype) == (name, "float32")
    with pytest.raises(ConfigError, match=f"dtype='bfloat16' is not for model='{name}'"):
        load_model(name, dtype="bfloat16", block_granularity=PAGE, progress=lambda line: None)
