"""The model without tensors: its tokens depend on the request alone, and it sees every block that is not right."""

import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from control_plane.errors import ConfigError
from control_plane.messages import Sampling
from data_plane.batch.rows import Rows
from data_plane.memory.layout import plan_layout
from data_plane.model.stamp import StampFault, StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.model.stamp_rows import ROW
from tests.unit.stamp_device import PROMPT, Device, served

TWO_GROUPS = StampOptions(group_kinds=("full", "full"), block_granularities=(4, 2), packings=(1, 3))


def test_tokens_are_those_of_the_oracle() -> None:
    """One request, alone: block after block, the model says what the formula says without blocks."""
    assert served(Device(), PROMPT, 20) == stamp_continuation(PROMPT, 20)


def test_rows_can_be_read_by_eye() -> None:
    """A block is an array of records: token, position, digest."""
    device = Device()
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    assert device.rows(1, 1)["token"].tolist() == PROMPT[4:8]
    assert device.rows(1, 2)["position"].tolist() == [8, 9, 10, 0]
    assert device.rows(1, 0)["digest"].all()
    assert not device.memory.blocks(0)[0].any()


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_tokens_depend_on_the_request_alone(seed: int) -> None:
    """Any chunks, batches, slots and blocks: two requests, and a third that shares the first block of the first."""
    chance = random.Random(seed)
    options = chance.choice([StampOptions(), TWO_GROUPS, replace(TWO_GROUPS, strict=False)])
    device = Device(options, seed=seed)
    prompts = {key: [chance.randrange(256) for _ in range(chance.randrange(5, 20))] for key in (1, 2, 3)}
    prompts[3][:4] = prompts[1][:4]
    drawing = {key: Sampling(temperature=1.0, seed=chance.randrange(4)) for key in prompts}
    left = {}
    for key in (1, 2):
        device.add(key, prompts[key], sampling=drawing[key])
        left[key] = len(prompts[key])
    while len(device.tokens) < 3 or min(map(len, device.tokens.values())) < 6:
        if 3 not in left and not left[1]:
            device.add(3, prompts[3], sampling=drawing[3], shares=(1, 4))
            left[3] = len(prompts[3]) - 4
        chosen = [key for key in left if chance.random() < 0.7 and len(device.tokens.get(key, ())) < 12]
        extends = {key: chance.randint(1, left[key]) for key in chosen if left[key]}
        device.run(extends, *[key for key in chosen if key not in extends])
        for key, tokens in extends.items():
            left[key] -= tokens
    for key, tokens in device.tokens.items():
        expected = stamp_continuation(prompts[key], len(tokens), options=options, sampling=drawing[key])
        assert tokens == expected, key


def test_the_oracle_sees_every_token_the_order_and_the_seed() -> None:
    """Another token anywhere, two exchanged, another seed of a drawing request: other continuations."""
    base = stamp_continuation(PROMPT, 8)
    for index in range(len(PROMPT)):
        changed = list(PROMPT)
        changed[index] += 1
        assert stamp_continuation(changed, 8) != base
    swapped = [PROMPT[1], PROMPT[0], *PROMPT[2:]]
    assert stamp_continuation(swapped, 8) != base
    drawn = [stamp_continuation(PROMPT, 8, sampling=Sampling(temperature=1.0, seed=seed)) for seed in (1, 2)]
    assert drawn[0] != drawn[1] != base
    assert stamp_continuation(PROMPT, 8, sampling=Sampling(seed=7)) == base


def test_tokens_stay_in_the_vocabulary_and_stop_as_often_as_asked() -> None:
    """Never the stop token at probability 0, always at 1, now and then between; the stop is the last one given."""
    never = stamp_continuation(PROMPT, 400, options=StampOptions(vocab_size=7))
    assert set(never) == {1, 2, 3, 4, 5, 6}
    assert stamp_continuation(PROMPT, 5, options=StampOptions(stop_probability=1.0)) == [0] * 5
    sometimes = StampOptions(stop_probability=0.05)
    assert 5 < stamp_continuation(PROMPT, 400, options=sometimes).count(0) < 50
    stopped = stamp_continuation(PROMPT, 400, options=sometimes, stop_token_ids=[0])
    assert stopped.index(0) == len(stopped) - 1 < 399
    assert served(Device(sometimes), PROMPT, 40) == stamp_continuation(PROMPT, 40, options=sometimes)


def zero_a_block(device: Device) -> None:
    device.rows(1, 1)[:] = 0


def swap_two_blocks(device: Device) -> None:
    device.tables.table(0)[device.slots[1], [0, 1]] = device.tables.table(0)[device.slots[1], [1, 0]]


def point_at_another_request(device: Device) -> None:
    device.tables.table(0)[device.slots[1], 1] = device.writer.blocks(2)[1]


def forget_a_block(device: Device) -> None:
    device.tables.table(0)[device.slots[1], 0] = 0


def overwrite_one_row(device: Device) -> None:
    device.rows(1, 1)[2] = device.rows(2, 1)[2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (zero_a_block, r"position 4: expected the row that continues position 3, found token 0 of position 0"),
        (swap_two_blocks, r"position 0: expected the row that begins the sequence, found token 7 of position 4"),
        (point_at_another_request, r"position 4: expected the row that continues position 3, .* another's"),
        (forget_a_block, r"position 0: expected a row, found a hole"),
        (overwrite_one_row, r"position 6: expected the row that continues position 5"),
    ],
)
def test_damage_behind_the_models_back_is_seen(damage: Callable[[Device], None], message: str) -> None:
    """Strict: a fault that names slot, group and position. Not strict: other tokens."""
    for strict in (True, False):
        device = Device(StampOptions(strict=strict))
        device.add(1, PROMPT)
        device.add(2, [token + 1 for token in PROMPT])
        device.run({1: len(PROMPT), 2: len(PROMPT)})
        damage(device)
        if strict:
            with pytest.raises(StampFault, match=f"slot 0, group 'full', {message}"):
                device.run(None, 1)
        else:
            for _ in range(4):
                device.run(None, 1)
            assert device.tokens[1] != stamp_continuation(PROMPT, 5)


def test_the_other_requests_of_the_batch_are_not_blamed() -> None:
    """The damaged request is the second row: its slot is named."""
    device = Device()
    device.add(2, [token + 1 for token in PROMPT])
    device.add(1, PROMPT)
    device.run({1: len(PROMPT), 2: len(PROMPT)})
    zero_a_block(device)
    device.run(None, 2)
    with pytest.raises(StampFault, match="slot 1, group 'full', position 4"):
        device.run(None, 2, 1)


def test_a_wrong_prefix_changes_the_tokens() -> None:
    """The second request's shared first block holds another prompt's rows, whole and in order, before it ever ran.

    No row contradicts another, and only the prompt's owner knows better: the tokens are not those of the oracle.
    """
    device = Device()
    device.add(1, PROMPT)
    device.add(3, [9, 9, 9, 9])
    device.run({1: 4, 3: 4})
    device.rows(1, 0)[:] = device.rows(3, 0)
    device.add(2, PROMPT, shares=(1, 4))
    device.run({2: 7})
    device.run(None, 2)
    assert device.tokens[2] == stamp_continuation([9, 9, 9, 9, *PROMPT[4:]], 2)
    assert device.tokens[2] != stamp_continuation(PROMPT, 2)


def test_a_prefix_that_is_reused_while_it_is_read_is_seen() -> None:
    """The shared first block goes to another request after the second one continued it."""
    device = Device()
    device.add(1, PROMPT)
    device.add(3, [9, 9, 9, 9])
    device.run({1: 4, 3: 4})
    device.add(2, PROMPT, shares=(1, 4))
    device.run({2: 5})
    device.rows(1, 0)[:] = device.rows(3, 0)
    with pytest.raises(StampFault, match="slot 2, group 'full', position 4: expected the row that continues"):
        device.run({2: 2})


def test_a_block_that_was_not_zeroed_is_seen_when_it_is_written() -> None:
    """The plan forgets to clean a block that another request used: its first write finds the old rows."""
    device = Device(blocks=1)
    device.add(1, PROMPT)
    device.run({1: 3})
    device.writer.release(1)
    device.add(2, [1, 2, 3])
    plan = device.writer.plan({2: 3})
    assert plan.zero
    with pytest.raises(StampFault, match=r"group 'full', position 0: block 1 is not clean .* not zeroed"):
        device.carry_out(replace(plan, zero=()))


def test_a_row_is_written_once() -> None:
    """The same token again at its place: the row is right, but it may be shared by now, so writing it is a fault."""
    device = Device()
    device.add(1, PROMPT)
    plan = device.writer.plan({1: 6})
    device.carry_out(plan)
    with pytest.raises(StampFault, match=r"position 0: block 1 is not clean .* written before, and others may share"):
        device.carry_out(replace(plan, zero=()))


def test_a_block_has_one_writer_in_a_round() -> None:
    """Two requests with the same tokens write the same rows into one block: right by chance, and named."""
    device = Device()
    device.add(1, PROMPT)
    device.add(2, PROMPT)
    plan = device.writer.plan({1: 4, 2: 4})
    shared = [replace(plan.tables[1], blocks=plan.tables[0].blocks)]
    with pytest.raises(StampFault, match="slot 0, group 'full', position 0: block 1 is written for position 0 of slot"):
        device.carry_out(replace(plan, tables=(plan.tables[0], *shared)))


def test_a_history_that_was_exchanged_as_a_whole_is_seen() -> None:
    """Every row continues the one before it, but the slot wrote another one last."""
    device = Device()
    device.add(1, PROMPT)
    device.add(2, [token + 1 for token in PROMPT])
    device.run({1: len(PROMPT), 2: len(PROMPT)})
    device.column(1)[:3] = device.column(2)[:3]
    with pytest.raises(StampFault, match="slot 0, group 'full', position 10: expected the row its slot wrote, found"):
        device.run(None, 1)


def test_a_block_of_another_group_is_seen() -> None:
    """The same token at the same position of another group does not pass."""
    device = Device(StampOptions(group_kinds=("full", "full"), block_granularities=(4, 4), packings=(1, 1)))
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.tables.table(1)[0, 0] = device.writer.blocks(1, 0)[0]
    with pytest.raises(StampFault, match="group 'full-1', position 0"):
        device.run(None, 1)


def test_the_null_block_is_never_written() -> None:
    """A table that lacks the block to write: refused, and the null block stays clean. Also when not strict."""
    for strict in (True, False):
        device = Device(StampOptions(strict=strict))
        device.add(1, PROMPT)
        with pytest.raises(StampFault, match="slot 0, group 'full', position 0: nothing may be written"):
            device.carry_out(replace(device.writer.plan({1: 5}), tables=()))
        assert not device.memory.blocks(0)[0].any()


def test_positions_beyond_the_table_are_refused() -> None:
    """The message says how far the table reaches."""
    device = Device()
    device.add(1, [1] * 70)
    plan = device.writer.plan({1: 70})
    with pytest.raises(StampFault, match="slot 0, group 'full': position 69 of 64"):
        device.carry_out(replace(plan, tables=()))


def test_a_decode_needs_a_token_sampled_for_this_owner() -> None:
    """A slot's last token does not pass to its next owner."""
    device = Device()
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.writer.release(1)
    device.add(2, PROMPT)
    device.run({2: 4})
    with pytest.raises(StampFault, match="slot 0 decodes, but nothing was sampled"):
        device.run(None, 2)


def test_only_one_token_a_step_is_decoded() -> None:
    """Speculation needs another model; the message names the field and its value."""
    device = Device()
    device.add(1, PROMPT)
    plan = device.writer.plan({1: 4})
    assert plan.forward is not None
    with pytest.raises(StampFault, match="decode_width=3"):
        device.carry_out(replace(plan, forward=replace(plan.forward, decode_width=3)))


def test_rows_whose_earlier_round_was_lost_blame_nobody() -> None:
    """Request 1's prefill never ran, yet its decode is in the next batch: request 2 in that batch is served right."""
    device = Device()
    device.add(1, PROMPT)
    device.add(2, PROMPT[:6])
    device.run({2: 6})
    device.carry_out(replace(device.writer.plan({1: len(PROMPT)}), forward=None))
    forward = device.writer.plan(None, [1, 2])
    device.carry_out(replace(forward, forward=None))
    assert forward.forward is not None
    rows = Rows(forward.forward)
    with pytest.raises(StampFault):
        device.runner.run(rows)
    rows.lost[0] = True
    tokens = device.runner.run(rows)()
    assert [*device.tokens[2], int(tokens[1])] == stamp_continuation(PROMPT[:6], 2)


def test_options_that_cannot_be_are_all_named_at_once() -> None:
    """Every problem in one answer."""
    options = StampOptions(vocab_size=1, stop_probability=2.0, group_kinds=("full", "spiral"))
    with pytest.raises(ConfigError) as raised:
        StampRunner(options)
    text = str(raised.value)
    for part in ("vocab_size=1", "stop_probability=2.0", "group_kinds has 2, block_granularities has 1", "'spiral'"):
        assert part in text
    options = StampOptions(
        group_kinds=("full", "sliding", "state"),
        block_granularities=(None, None, None),
        packings=(1, 1, 1),
        windows=(3, 0, 0),
        replayables=(False, False, True),
    )
    with pytest.raises(ConfigError) as raised:
        StampRunner(options)
    text = str(raised.value)
    for part in ("windows[0]=3 must be 0", "windows[1]=0 must be at least 1", "replayables[2] is set"):
        assert part in text


def test_facts_say_how_blocks_are_laid_out() -> None:
    """16 bytes a row; a granularity that is not named is the engine's."""
    facts = StampRunner(replace(TWO_GROUPS, block_granularities=(None, 2)), block_granularity=8).facts
    assert [(group.id, group.block_granularity, group.block_bytes) for group in facts.groups] == [
        ("full-0", 8, 128),
        ("full-1", 2, 32),
    ]
    assert (facts.vocab_size, facts.stop_token_ids) == (256, (0,))
    assert np.dtype(ROW).itemsize == 16


def test_kinds_of_groups_differ_in_their_blocks() -> None:
    """History has a row for each token of a block, state one row; so more blocks of state fill a parent."""
    options = StampOptions(
        group_kinds=("full", "sliding", "sliding", "state"),
        block_granularities=(8, 4, 8, 8),
        packings=(1, 3, 1, 1),
        windows=(0, 6, 5, 0),
        replayables=(False, False, True, False),
    )
    groups = plan_layout(StampRunner(options).facts.groups).groups
    assert [(group.id, group.block_bytes, group.packing, group.window, group.replayable) for group in groups] == [
        ("full-0", 128, 3, 0, False),
        ("sliding-1", 64, 6, 6, False),
        ("replayable-2", 128, 3, 5, True),
        ("state-3", 16, 24, 0, False),
    ]


def test_a_stamp_device_needs_neither_torch_nor_transformers() -> None:
    """A fresh interpreter builds one, runs a prompt through it, and has loaded none of them."""
    program = """
import sys
from data_plane.builder import build_device
from data_plane.options import DeviceOptions
from data_plane.testing.plans import PlanWriter
specs, handle = build_device(DeviceOptions(model="stamp", max_batch_size=2))
answers = []
handle.start(answers.append)
writer = PlanWriter(specs.groups, device_blocks=4, slots=2)
writer.add(1, [1, 2, 3])
handle.execute(writer.plan({1: 3}))
handle.close()
assert len(answers) == 1, answers
print(sorted(name for name in ("torch", "transformers", "cupy") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
