"""Random programs on the C++ reference and on ours: the same rounds, but for what `differences.md` names."""

import random

import pytest

from control_plane import CacheGroupConfig, SchedulerConfig
from tests.reference.peer import Ours, Reference, RoundView

ROUNDS_A_SEED = 60
SEEDS = 100


def _config(draw: random.Random) -> SchedulerConfig:
    """Room for every resident at once, so that nobody waits for blocks; yet the cache must evict."""
    granularity = draw.choice([4, 8, 16])
    batch = draw.randint(1, 5)
    groups = tuple(
        CacheGroupConfig(f"g{index}", block_granularity=granularity // draw.choice([1, 1, 2, 4]), packing=1)
        for index in range(draw.choice([1, 1, 2]))
    )
    longest = 100
    blocks = batch * sum(-(-longest // group.block_granularity) + 1 for group in groups)
    return SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=draw.randint(batch + 2, 64),
        max_batch_size=batch,
        device_blocks=blocks + draw.randint(0, 6),
        groups=groups,
        max_context_tokens=1 << 20,
        overlap_depth=draw.choice([0, 1]),
        mixed=draw.choice([True, False]),
        prefix_cache=draw.random() < 0.85,
        max_overtakes=None,
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
