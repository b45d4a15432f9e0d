"""The capacity model against the reference's, for random configurations; docs/differences.md names what differs."""

import random

import tokenspeed_scheduler as ts

from control_plane import CacheGroupConfig, CapacityModel, GroupKind, SchedulerConfig
from tools.bench.reference import reference_config


def _config(draw: random.Random) -> SchedulerConfig:
    granularity = draw.choice([4, 8, 16])
    groups = []
    for index, kind in enumerate(draw.choice(["f", "s", "ff", "fs", "fss"])):
        window = draw.choice([3, 4, 7, 8, 9, 16, 30]) if kind == "s" else 0
        groups.append(
            CacheGroupConfig(
                f"g{index}",
                GroupKind.SLIDING if kind == "s" else GroupKind.FULL,
                block_granularity=granularity // draw.choice([1, 2, 4]),
                window=window,
            )
        )
    return SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=draw.randint(40, 100),
        max_batch_size=draw.randint(1, 5),
        device_blocks=500,
        groups=tuple(groups),
        max_context_tokens=1 << 20,
        overlap_depth=draw.choice([0, 1]),
        mixed=draw.random() < 0.5,
    )


def test_a_full_house_needs_the_same_blocks() -> None:
    """Full and sliding groups: as many blocks, for as many requests of as many tokens."""
    for seed in range(500):
        draw = random.Random(seed)
        config = _config(draw)
        ours, theirs = CapacityModel(config), ts.CapacityModel(reference_config(config))
        for tokens in (8, 33, 100, 300):
            total = tokens * config.max_batch_size
            # A single chunk of one short request can be all there is; ours then also covers its worst alignment.
            single = ours.single_request_group_blocks(tokens)
            expected = theirs.concurrent_group_pages(total, tokens)
            wanted = tuple(max(pair) for pair in zip(expected, single, strict=True))
            assert ours.concurrent_group_blocks(total, tokens) == wanted, (seed, tokens)


def test_a_single_request_needs_the_same_blocks_of_full_groups() -> None:
    """Without overlap; with it ours is exact where the reference adds a step that we never plan."""
    for seed in range(500):
        config = _config(random.Random(seed))
        if config.overlap_depth:
            continue
        ours, theirs = CapacityModel(config), ts.CapacityModel(reference_config(config))
        for tokens in range(1, 80):
            for group, mine, other in zip(
                config.groups,
                ours.single_request_group_blocks(tokens),
                theirs.single_request_group_pages(tokens),
                strict=True,
            ):
                assert mine == other or group.kind is not GroupKind.FULL, (seed, tokens)
