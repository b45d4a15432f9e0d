"""The model without tensors: its tokens depend on the request alone, and it sees every block that is not right."""

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from control_plane.errors import ConfigError
from control_plane.messages import ExecutionPlan, Sampling
from data_plane.batch.rows import Rows
from data_plane.memory.arena import Arena
from data_plane.memory.device_memory import ArenaMemory
from data_plane.memory.layout import plan_layout
from data_plane.memory.tables import HostTables
from data_plane.model.stamp import StampFault, StampOptions, StampRunner
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.model.stamp_rows import ROW
from data_plane.ops.table_edits import HostTableEdits
from data_plane.ops.zeroing import HostZeroing
from data_plane.testing.plans import PlanWriter

TWO_GROUPS = StampOptions(group_kinds=("full", "full"), block_granularities=(4, 2), packings=(1, 3))
PROMPT = [11, 5, 200, 5, 7, 9, 1, 44, 3, 2, 8]


class Device:
    """A stamp model and its memory, driven by a plan writer; the tokens of each request, as they were sampled."""

    def __init__(
        self, options: StampOptions | None = None, *, granularity: int = 4, blocks: int = 40, seed: int | None = None
    ) -> None:
        self.runner = StampRunner(options, block_granularity=granularity)
        layout = plan_layout(self.runner.facts.groups)
        self.groups = layout.groups
        widths = [-(-64 // group.block_granularity) for group in layout.groups]
        counts = [(blocks + 1) * group.packing for group in layout.groups]
        self.tables = HostTables(slots=8, widths=widths, block_counts=counts)
        self.memory = ArenaMemory(layout, Arena(layout, device_blocks=blocks, device="cpu"), self.tables)
        self.zeroing = HostZeroing(self.memory, groups=len(layout.groups))
        self.runner.attach(self.memory, slots=8)
        self.writer = PlanWriter(layout.groups, device_blocks=blocks, slots=8, shuffle_seed=seed)
        self.tokens: dict[int, list[int]] = {}
        self.slots: dict[int, int] = {}

    def run(self, extends: Mapping[int, int] | None = None, *decodes: int) -> None:
        self.carry_out(self.writer.plan(extends, decodes))

    def carry_out(self, plan: ExecutionPlan) -> None:
        self.zeroing.zero(plan.zero)
        HostTableEdits(self.tables).apply(plan.tables)
        for binding in plan.bindings:
            self.runner.bind(binding)
        if plan.forward is not None:
            rows = Rows(plan.forward)
            tokens = self.runner.run(rows)()
            for key, token in zip(rows.keys[rows.samples].tolist(), tokens.tolist(), strict=True):
                self.tokens.setdefault(key, []).append(token)

    def add(self, key: int, prompt: list[int], **options: Any) -> None:
        self.slots[key] = self.writer.add(key, prompt, **options)

    def rows(self, key: int, block_index: int, group: int = 0) -> Any:
        """The rows in the block that holds this part of a request."""
        block = self.writer.blocks(key, group)[block_index]
        return self.memory.blocks(group).view(ROW)[block]


def served(device: Device, prompt: list[int], steps: int) -> list[int]:
    device.add(1, prompt)
    device.run({1: len(prompt)})
    for _ in range(steps - 1):
        device.run(None, 1)
    return device.tokens[1]


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


def test_facts_say_how_blocks_are_laid_out() -> None:
    """16 bytes a row; a granularity that is not named is the engine's."""
    facts = StampRunner(replace(TWO_GROUPS, block_granularities=(None, 2)), block_granularity=8).facts
    assert [(group.id, group.block_granularity, group.block_bytes) for group in facts.groups] == [
        ("full-0", 8, 128),
        ("full-1", 2, 32),
    ]
    assert (facts.vocab_size, facts.stop_token_ids) == (256, (0,))
    assert np.dtype(ROW).itemsize == 16


def test_a_stamp_device_needs_neither_torch_nor_transformers() -> None:
    """A fresh interpreter builds one, runs a prompt through it, and has loaded none of them."""
    program = """
import sys
from data_plane.builder import DeviceOptions, build_device
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
