"""The pool behind a recording. The scheduler is deterministic: fed what was recorded, it stands where it stood.

What a block is used for is in no plan (whether it is cached or free least of all), so a scheduler of the recorded
configuration follows along, and its plans must be the recorded ones.
"""

import numpy as np

from control_plane import Scheduler, SchedulerConfig
from control_plane.rounds.steps import Happened, Planned, Step, Submitted

FREE, CACHED, OUTSIDE, SHARED, ABSENT = ".", "-", "*", "+", " "
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Replayed:
    """A scheduler that follows a recording. `differs_at` is the first round that it plans otherwise."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self.differs_at: int | None = None

    def take(self, step: Step) -> None:
        """Follow one step, as long as plans agree."""
        if self.differs_at is not None:
            return
        match step:
            case Submitted(specs=specs):
                self.scheduler.submit(specs)
            case Happened(events=events):
                self.scheduler.advance(events)
            case Planned(plan=plan):
                if self.scheduler.next_plan() != plan:
                    self.differs_at = plan.round
            case _:
                return


class PoolCounts:
    """Use of the pool, averaged over rounds: parts of its LCM blocks."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._total = config.device_blocks
        self.rounds = 0
        self._used = self._cached = self._peak = 0

    def add(self, scheduler: Scheduler) -> None:
        """A round was planned."""
        stats = scheduler.stats()
        self.rounds += 1
        self._used += stats.used_blocks
        self._cached += stats.cached_blocks
        self._peak = max(self._peak, stats.used_blocks)

    @property
    def used(self) -> float:
        """Held by requests, copies or transfers."""
        return self._used / (self.rounds * self._total)

    @property
    def cached(self) -> float:
        """Held by nobody, and worth something to those who share the prefix."""
        return self._cached / (self.rounds * self._total)

    @property
    def used_peak(self) -> float:
        """The most that was held in any round."""
        return self._peak / self._total


def pool_map(scheduler: Scheduler) -> list[str]:
    """A line a group, one character a block: `.` free, `-` cached, `*` held by a copy or a transfer, `+` shared by
    requests, else its holder's letter (`legend`); blank where the block's parent belongs to another group.
    """
    groups = scheduler.config.groups
    parents = scheduler.config.device_blocks + 1
    marks = [np.full(parents * group.packing, FREE) for group in groups]
    is_bound = []
    for index, mark in enumerate(marks):
        references, cached, rows = scheduler.block_uses(index)
        mark[cached] = CACHED
        mark[references > 0] = OUTSIDE
        users = np.zeros(len(mark), dtype=np.int32)
        for number, blocks in enumerate(rows.values()):
            mark[blocks] = LETTERS[number % len(LETTERS)]
            users[blocks] += 1
        mark[users > 1] = SHARED
        is_bound.append((mark != FREE).reshape(parents, -1).any(axis=1))
    lines = []
    for index, (group, mark) in enumerate(zip(groups, marks, strict=True)):
        others = np.any([bound for other, bound in enumerate(is_bound) if other != index], axis=0)
        mark[np.repeat(np.broadcast_to(others, parents), group.packing)] = ABSENT
        lines.append("".join(mark[group.packing :]))  # parent 0 is null
    return lines


def legend(scheduler: Scheduler) -> str:
    """Which letter is whose."""
    pairs = [f"{LETTERS[n % len(LETTERS)]} {request.spec.id}" for n, request in enumerate(scheduler.residents())]
    return ", ".join(pairs)
