"""Random programs on the C++ reference and on ours: the same rounds, but for what `differences.md` names."""

import random

import pytest

from control_plane import CacheGroupConfig, GroupKind, SchedulerConfig
from tests.reference.peer import Ours, Reference, RoundView

ROUNDS_A_SEED = 60
SEEDS = 100


MIXES = ("f", "ff", "fs", "fm", "fsm", "fss", "fr", "fsr", "ssr", "s", "m", "smm")


def _least_budget(groups: tuple[CacheGroupConfig, ...], granularity: int) -> int:
    window = max(group.window for group in groups)
    return granularity + 2 * window


def _config(draw: random.Random) -> SchedulerConfig:
    """Room for every resident at once, so that nobody waits for blocks; yet the cache must evict."""
    granularity = draw.choice([4, 8, 16])
    batch = draw.randint(1, 5)
    groups = tuple(_group(draw, f"g{index}", kind, granularity) for index, kind in enumerate(draw.choice(MIXES)))
    longest = 100
    # Blocks that slide out may leave a parent to the few that stay: room for that, too.
    blocks = batch * sum((-(-longest // group.block_granularity) + 1) // group.packing + 2 for group in groups)
    return SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=draw.randint(batch + 2, 64) + max(_least_budget(groups, granularity) - 2, 0),
        max_batch_size=batch,
        device_blocks=blocks + draw.randint(0, 6),
        groups=groups,
        max_context_tokens=1 << 20,
        overlap_depth=draw.choice([0, 1]),
        mixed=draw.choice([True, False]),
        prefix_cache=draw.random() < 0.85,
        max_overtakes=None,
        sliding_prepay=False,
    )


def _group(draw: random.Random, name: str, kind: str, granularity: int) -> CacheGroupConfig:
    window = draw.choice([1, 3, 4, 7, 8, 9, 16, 30]) if kind in "sr" else 0
    return CacheGroupConfig(
        name,
        kind={"f": GroupKind.FULL, "s": GroupKind.SLIDING, "r": GroupKind.SLIDING, "m": GroupKind.STATE}[kind],
        block_granularity=granularity // draw.choice([1, 1, 2, 4]),
        packing=draw.choice([1, 1, 2, 3]),
        window=window,
        replayable=kind == "r",
    )


class _Program:
    """One seed: both schedulers, and who is live."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.config = _config(self.draw)
        self.ours = Ours(self.config)
        self.sides = (self.ours, Reference(self.config))
        self.live: dict[str, int] = {}  # tokens still to come
        self.out: list[RoundView] = []
        self.lengths: dict[str, int] = {}
        self.rounds = 0

    def run(self) -> None:
        for step in range(ROUNDS_A_SEED):
            if self.draw.random() < 0.4 and len(self.live) < 8:
                self._submit(f"r{step:04d}")
            if not self._round():
                return

    def _submit(self, name: str) -> None:
        draw = self.draw
        base = draw.randint(0, 1)
        shared = [base * 1000 + position for position in range(draw.randint(0, 50))]
        prompt = [*shared, *(draw.randint(5000, 6000) for _ in range(draw.randint(1, 20)))]
        output = draw.randint(1, 20)
        # More than it will say: the reference overlaps steps beyond the last token, ours never does (D1).
        declared = output + 5 if draw.random() < 0.6 else None
        for side in self.sides:
            side.submit(name, prompt, declared)
        self.live[name] = output
        self.lengths[name] = len(prompt)

    def _round(self) -> bool:
        """One round on both; False where they may part from here on, which `differences.md` tells."""
        if len(self.out) > self.config.overlap_depth:
            self._land()
        ours, theirs = (side.plan() for side in self.sides)
        if ours != theirs and self.ours.has_replaced:
            return False
        assert ours == theirs
        if ours is not None:
            self.rounds += 1
            self.out.append(ours)
        elif self.out:
            self._land()
        return True

    def _land(self) -> None:
        landed = self.out.pop(0)
        sampled = [*landed.decodes, *(name for name, _, end, _ in landed.extends if end >= self.lengths[name])]
        finish = []
        for name in sampled:
            if name in self.live:
                self.live[name] -= 1
                if not self.live[name]:
                    finish.append(name)
        abort = [name for name in self.live if name not in finish and self.draw.random() < 0.02]
        for name in [*finish, *abort]:
            del self.live[name]
        for side in self.sides:
            side.land(finish, abort)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_same_program_gives_the_same_rounds(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Who is in the batch, in which order, with which tokens, and how many blocks each group gets."""
    program = _Program(seed)
    program.run()
    assert program.rounds > 10
