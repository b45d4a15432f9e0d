"""Random configurations."""

import random

from msgspec import structs

from control_plane import CacheGroupConfig, CapacityModel, GroupKind, SchedulerConfig
from control_plane.config import Role
from tests.reference.programs import Weather

KINDS = {"f": GroupKind.FULL, "s": GroupKind.SLIDING, "r": GroupKind.SLIDING, "m": GroupKind.STATE}


def draw_groups(draw: random.Random, mix: str, granularity: int, *, packed: bool) -> tuple[CacheGroupConfig, ...]:
    """One group for every letter: full, sliding, replayable, state (m)."""
    return tuple(_group(draw, f"g{index}", kind, granularity, packed) for index, kind in enumerate(mix))


def _group(draw: random.Random, name: str, kind: str, granularity: int, packed: bool) -> CacheGroupConfig:
    return CacheGroupConfig(
        name,
        kind=KINDS[kind],
        block_granularity=granularity // draw.choice([1, 1, 2, 4]),
        packing=draw.choice([1, 1, 2, 3]) if packed else 1,
        window=draw.choice([1, 3, 4, 7, 8, 9, 16, 30]) if kind in "sr" else 0,
        replayable=kind == "r",
    )


def draw_overload(
    draw: random.Random, *, role: Role, depth: int, has_host: bool, declares: float
) -> tuple[SchedulerConfig, Weather]:
    """A pool between what one request needs and half of what all would like, and as many requests as make it short."""
    granularity, batch = draw.choice([4, 8, 16]), draw.randint(2, 6)
    groups = draw_groups(draw, "f", granularity, packed=False)
    if has_host or role is not Role.FUSED:
        # Of a page that the device lost in part ours loads the part, the reference the page.
        groups = tuple(structs.replace(group, block_granularity=granularity) for group in groups)
    weather = Weather(
        requests=draw.randint(4, 14),
        rounds=250,
        prompt_tokens=draw.choice([6, 20, 40]),
        shared_tokens=draw.choice([0, 20, 40]),
        output_tokens=draw.choice([10, 30, 60]),
        declares=declares,
        arrival=draw.choice([0.1, 0.3, 0.8]),
        burst=draw.randint(1, 4),
    )
    config = SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=64,
        max_batch_size=batch,
        device_blocks=4096,
        groups=groups,
        max_context_tokens=1 << 20,
        overlap_depth=depth,
        mixed=draw.choice([True, False]),
        max_overtakes=None,
        sliding_prepay=False,
        role=role,
        recompute_failed_transfers=False,
    )
    least = batch + config.min_prefill_chunk_tokens
    longest = weather.prompt_tokens + weather.shared_tokens + weather.output_tokens + 12
    fewest, all_of_them = (_blocks_for(config, tokens) for tokens in (longest, longest * batch))
    config = structs.replace(
        config,
        max_scheduled_tokens=max(least, draw.choice([least, least + draw.randint(0, 20), draw.randint(20, 100)])),
        device_blocks=fewest + draw.randint(0, max(0, (all_of_them - fewest) // 2)),
        host_blocks=all_of_them * weather.requests if has_host else 0,
    )
    return config, weather


def _blocks_for(config: SchedulerConfig, tokens: int) -> int:
    """The fewest blocks that accept a request of so many tokens."""
    model = CapacityModel(config)
    return model.lcm_blocks(model.single_request_group_blocks(tokens))
