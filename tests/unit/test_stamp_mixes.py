"""Several kinds of cache groups in one stamp model: the tokens depend on the request alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from control_plane.messages import Sampling
from data_plane.model.stamp import StampFault, StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from tests.unit.stamp_device import PROMPT, Device

BOUNDARY = 8

EVERY_KIND = StampOptions(
    group_kinds=("full", "sliding", "state", "sliding"),
    block_granularities=(4, 2, 4, 2),
    packings=(1, 3, 1, 2),
    windows=(0, 5, 0, 3),
)


@st.composite
def mixes(draw: st.DrawFn) -> StampOptions:
    """One to four groups of any kind, each with its own granularity, packing and window. Replay is not with state."""
    kinds = draw(st.lists(st.sampled_from(["full", "sliding", "state"]), min_size=1, max_size=4))
    count = len(kinds)
    may_replay = "state" not in kinds and draw(st.booleans())
    return StampOptions(
        strict=draw(st.integers(0, 3)) > 0,
        group_kinds=tuple(kinds),
        block_granularities=tuple(draw(st.sampled_from([1, 2, 4, 8])) for _ in range(count)),
        packings=tuple(draw(st.integers(1, 3)) for _ in range(count)),
        windows=tuple(draw(st.integers(1, 12)) if kind == "sliding" else 0 for kind in kinds),
        replayables=tuple(may_replay and kind == "sliding" and draw(st.booleans()) for kind in kinds),
    )


@settings(max_examples=150, deadline=None)
@given(options=mixes(), seed=st.integers(0, 2**32))
def test_tokens_depend_on_the_request_alone(options: StampOptions, seed: int) -> None:
    """Any groups, chunks, checkpoints, batches, slots and blocks; a third request shares what the first began with."""
    chance = random.Random(seed)
    shares = chance.random() < 0.8
    device = Device(options, seed=seed, blocks=300, keeps_expired=shares)
    prompts = {key: [chance.randrange(256) for _ in range(chance.randrange(9, 24))] for key in (1, 2, 3)}
    prompts[3][:BOUNDARY] = prompts[1][:BOUNDARY]
    drawing = {key: Sampling(temperature=1.0, seed=chance.randrange(4)) for key in prompts}
    left = {}
    for key in prompts if not shares else (1, 2):
        device.add(key, prompts[key], sampling=drawing[key])
        left[key] = len(prompts[key])
    while len(device.tokens) < 3 or min(map(len, device.tokens.values())) < 6:
        if 3 not in left and not left[1]:
            device.add(3, prompts[3], sampling=drawing[3], shares=(1, BOUNDARY))
            left[3] = len(prompts[3]) - BOUNDARY
        chosen = [key for key in left if chance.random() < 0.7 and len(device.tokens.get(key, ())) < 12]
        extends = {key: chance.randint(1, left[key]) for key in chosen if left[key]}
        checkpoints = {}
        for key, tokens in extends.items():
            begin = len(prompts[key]) - left[key]
            if begin < BOUNDARY < begin + tokens and (key == 1 or chance.random() < 0.5):
                checkpoints[key] = BOUNDARY
            left[key] -= tokens
        device.run(extends, *[key for key in chosen if key not in extends], checkpoints=checkpoints)
    for key, said in device.tokens.items():
        assert said == stamp_continuation(prompts[key], len(said), options=options, sampling=drawing[key]), key


@pytest.mark.parametrize("group", range(4))
def test_every_group_alone_is_enough_to_change_the_tokens(group: int) -> None:
    """Not strict: one group's last block is zeroed, the others are whole."""
    options = replace(EVERY_KIND, strict=False)
    device = Device(options)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    device.rows(1, -1, group)[:] = 0
    for _ in range(3):
        device.run(None, 1)
    assert device.tokens[1] != stamp_continuation(PROMPT, 4, options=options)


def test_a_request_alone_takes_room_as_its_groups_retain() -> None:
    """After 40 tokens: ten blocks of full history, two or three in each window, one snapshot."""
    device = Device(EVERY_KIND)
    device.add(1, PROMPT)
    device.run({1: len(PROMPT)})
    for _ in range(29):
        device.run(None, 1)
    held = [sum(map(bool, device.writer.blocks(1, group))) for group in range(4)]
    assert held == [10, 3, 1, 2]
    assert device.tokens[1] == stamp_continuation(PROMPT, 30, options=EVERY_KIND)


def damaged() -> Device:
    """Two requests that computed their prompts; nothing is left of the first one's blocks."""
    device = Device(EVERY_KIND)
    device.add(1, PROMPT)
    device.add(2, PROMPT[:6])
    device.run({1: len(PROMPT), 2: 6})
    for group in range(4):
        device.column(1, group)[:] = 0
    return device


def test_rows_of_lost_requests_blame_nobody() -> None:
    """Their blocks may be gone, their tokens never sampled: the other request of the batch is served right."""
    device = damaged()
    plan = device.writer.plan(None, [1, 2])
    device.carry_out(plan, lost=(1,))
    assert device.tokens[2] == stamp_continuation(PROMPT[:6], 2, options=EVERY_KIND)
    device.carry_out(device.writer.plan(None, [1]), lost=(1,))
    device.run(None, 2)
    assert device.tokens[2] == stamp_continuation(PROMPT[:6], 3, options=EVERY_KIND)
    with pytest.raises(StampFault, match="slot 0"):
        damaged().run(None, 1, 2)
