"""Random settings: group mixes, roles, pools, decode widths, shapes of rounds, and how a program goes."""

import random

from msgspec import Struct, structs

from control_plane import CacheGroupConfig, CapacityModel, ConfigError, GroupKind, SchedulerConfig
from control_plane.config import Role
from tools.compare_reference.program import Weather

KINDS = {"f": GroupKind.FULL, "s": GroupKind.SLIDING, "r": GroupKind.SLIDING, "m": GroupKind.STATE}
# One group for every letter: full, sliding, replayable, state (m, for Mamba).
MIXES = ("f", "ff", "fs", "fm", "fsm", "fss", "fr", "fsr", "ssr", "s", "m", "smm")


class Family(Struct, frozen=True):
    """What a report counts programs by."""

    mix: str
    role: Role
    is_short: bool  # fewer blocks than all would like: requests give way to each other
    has_host: bool
    aborts: bool
    decode_width: int
    overlap_depth: int
    packed: bool
    declares: float


class Setting(Struct, frozen=True):
    """One program to be: the seed of its chance, the configuration of both schedulers, and how it goes."""

    seed: int
    family: Family
    config: SchedulerConfig
    weather: Weather


def draw_family(draw: random.Random) -> Family:
    """Any of them."""
    role = draw.choice([Role.FUSED, Role.FUSED, Role.FUSED, Role.PREFILL, Role.DECODE])
    return Family(
        mix=draw.choice(MIXES),
        role=role,
        is_short=draw.random() < 0.5,
        has_host=role is not Role.PREFILL and draw.random() < 0.3,
        aborts=draw.random() < 0.5,
        decode_width=draw.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
        overlap_depth=draw.choice([0, 1]) if role is Role.FUSED else 0,
        packed=draw.random() < 0.4,
        declares=draw.choice([0.0, 0.0, 0.6]),
    )


def draw_setting(seed: int, **fixed: object) -> Setting:
    """The setting of a seed; parts of its family may be given."""
    draw = random.Random(seed)
    family = structs.replace(draw_family(draw), **fixed)
    while True:
        config = _config(draw, family)
        weather = _weather(draw, family, config)
        try:
            config = _sized(draw, family, config, weather)
            config.validate()
        except ConfigError:
            continue
        return Setting(seed, family, config, weather)


def _weather(draw: random.Random, family: Family, config: SchedulerConfig) -> Weather:
    return Weather(
        requests=draw.randint(4, 14),
        rounds=250,
        prompt_tokens=draw.choice([6, 20, 40, 110]),
        shared_tokens=draw.choice([0, 20, 40, 90]),
        output_tokens=draw.choice([10, 30, 60]),
        declares=family.declares,
        arrival=draw.choice([0.1, 0.3, 0.8]),
        burst=draw.randint(1, 4),
        abort=draw.choice([0.01, 0.05]) if family.aborts else 0.0,
        fail=draw.choice([0.0, 0.1]) if family.aborts else 0.0,
        store_delay=draw.choice([0, 0, 2, 5]),
        peer_delay=draw.choice([0, 1, 3]),
    )


def _config(draw: random.Random, family: Family) -> SchedulerConfig:
    granularity = draw.choice([4, 8, 12, 16, 24])
    groups = tuple(_group(draw, f"g{index}", kind, granularity, family) for index, kind in enumerate(family.mix))
    return SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=1 << 16,
        max_batch_size=draw.choice([1, 2, 3, 4, 5, 6, 9, 16]),
        device_blocks=1 << 16,
        groups=groups,
        max_context_tokens=1 << 20,
        decode_width=family.decode_width,
        overlap_depth=family.overlap_depth,
        mixed=draw.choice([True, False]),
        prefix_cache=family.has_host or draw.random() < 0.9,
        max_overtakes=None,
        sliding_prepay=False,
        role=family.role,
        recompute_failed_transfers=False,
    )


def _group(draw: random.Random, name: str, kind: str, granularity: int, family: Family) -> CacheGroupConfig:
    # Of a page that the device lost in part ours loads the part, the reference the page.
    parts = [1] if family.has_host else [1, 1, 2, 4]
    return CacheGroupConfig(
        name,
        kind=KINDS[kind],
        block_granularity=granularity // draw.choice(parts),
        packing=draw.choice([1, 2, 3]) if family.packed else 1,
        window=draw.choice([1, 3, 4, 7, 8, 9, 12, 16, 17, 30]) if kind in "sr" else 0,
        replayable=kind == "r",
    )


def _sized(draw: random.Random, family: Family, config: SchedulerConfig, weather: Weather) -> SchedulerConfig:
    """A budget, and a pool: room for all at once, or between what one needs and half of what all would like."""
    batch = config.max_batch_size
    least = batch * config.decode_width + config.min_prefill_chunk_tokens
    budget = max(least, draw.choice([least, least + draw.randint(0, 20), draw.randint(20, 150)]))
    config = structs.replace(config, max_scheduled_tokens=budget)
    longest = weather.prompt_tokens + weather.shared_tokens + (weather.output_tokens + 12) * 1 + 12
    model = CapacityModel(config)
    fewest = model.lcm_blocks(model.single_request_group_blocks(longest))
    full = model.lcm_blocks(model.concurrent_group_blocks(longest * batch, longest))
    blocks = full + batch * 4 * len(config.groups) + draw.randint(0, 20)
    if family.is_short:
        blocks = fewest + draw.randint(0, max(0, (full - fewest) // 2))
    host = blocks * 4 + full * weather.requests if family.has_host else 0
    return structs.replace(config, device_blocks=blocks, host_blocks=host)
