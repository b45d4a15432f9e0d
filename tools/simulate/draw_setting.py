"""A configuration from a seed: any mix of groups, small pages, pools that are tiny or too small for the work."""

from random import Random

from msgspec import structs

from control_plane import Role, Scheduler
from control_plane.scheduler.capacity_model import CapacityModel
from tools.simulate.program import Group, Kind, Peer, Setting

BOUNDLESS = 1 << 20


def draw_setting(random: Random) -> Setting:
    """What a program runs on. At least a request of a few tokens fits into the pools."""
    has_peer = random.random() < 0.35
    setting = Setting(
        prefix_granularity=random.choice([2, 4, 4, 8, 8, 16, 32]),
        groups=draw_groups(random),
        budget_tokens=_draw_budget(random),
        batch=_draw_batch(random),
        context_tokens=random.choice([48, 96, 96, 160, 256]),
        pool=BOUNDLESS,
        overlap_depth=random.randint(0, 1),
        mixed=random.random() < 0.6,
        prefix_cache=random.random() < 0.9,
        sliding_prepay=random.random() < 0.5,
        safe_steps=random.choice([1, 4, 16, 4096]),
        max_overtakes=random.choice([0, 2, 32, None]),
        stop_probability=random.choice([0.0, 0.0, 0.02, 0.1]),
        recompute_failed_transfers=random.random() < 0.8,
        order_seed=random.randrange(1 << 16),
        peer=Peer() if has_peer else None,
    )
    pool = _draw_pool(random, setting)
    host_blocks = _draw_host_blocks(random, setting, pool)
    peer = _draw_peer(random, setting) if has_peer else None
    return structs.replace(setting, pool=pool, host_blocks=host_blocks, peer=peer)


def draw_groups(random: Random) -> tuple[Group, ...]:
    """One to three groups of any kind; replayable ones beside something that is matched, and never beside state."""
    all_kinds: list[Kind] = ["full", "sliding", "state"]
    kinds = random.choices(all_kinds, weights=[4, 3, 2], k=random.choice([1, 2, 2, 3, 3]))
    may_replay = "state" not in kinds and random.random() < 0.4
    return tuple(
        Group(
            kind=kind,
            fraction=random.choice([1, 1, 2]),
            packing=random.randint(1, 3),
            window=random.choice([1, 2, 5, 9, 14, 24, 40]) if kind == "sliding" else 0,
            replayable=may_replay and kind == "sliding" and index > 0,
        )
        for index, kind in enumerate(kinds)
    )


def longest_request(setting: Setting) -> int:
    """Tokens of the longest request that every engine accepts."""
    return min(Scheduler(each.config(role)).max_single_request_tokens for role, each in setting.by_role().items())


def is_at_bound(setting: Setting) -> bool:
    """Whether the pool of an engine is the smallest in which its longest request can run."""
    for role, each in setting.by_role().items():
        tokens, of_less = (
            CapacityModel(structs.replace(each, pool=pool).config(role)).max_single_request_tokens()
            for pool in (each.pool, each.pool - 1)
        )
        if of_less < tokens:
            return True
    return False


def _draw_peer(random: Random, setting: Setting) -> Peer:
    pool = _draw_pool(random, setting)
    return Peer(
        budget_tokens=_draw_budget(random),
        batch=_draw_batch(random),
        pool=pool,
        host_blocks=_draw_host_blocks(random, setting, pool),
        overlap_depth=random.randint(0, 1),
        order_seed=random.randrange(1 << 16),
    )


def _draw_budget(random: Random) -> int:
    return random.choice([1, 8, 16, 32, 64]) + random.randrange(16)


def _draw_batch(random: Random) -> int:
    return random.choice([1, 2, 3, 4, 4, 6, 8])


def _draw_pool(random: Random, setting: Setting) -> int:
    """Blocks for one request of some length and for up to two more of them."""
    model = CapacityModel(setting.config(Role.FUSED))
    tokens = random.randint(min(24, setting.context_tokens), setting.context_tokens)
    alone = model.lcm_blocks(model.single_request_group_blocks(tokens))
    return alone + int(alone * random.choice([0.0, 0.2, 0.2, 0.5, 1.0, 2.0]))


def _draw_host_blocks(random: Random, setting: Setting, pool: int) -> int:
    """None in some settings; else as few as hardly help, up to more than anybody can fill."""
    if not setting.prefix_cache or random.random() < 0.25:
        return 0
    return max(1, int(pool * random.choice([0.1, 0.5, 2.0, 4.0])))
