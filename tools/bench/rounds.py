"""Time the rounds of several schedulers in alternation: W1 (decoding) and W6 (prompts that wait)."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tools.bench.contender import Clock, Contender, RoundTimes
from tools.bench.figures import Figures
from tools.bench.workloads import Case

BLOCK_ROUNDS = 16  # rounds of one scheduler before the next has its turn
SETUP_ROUND_LIMIT = 20_000


@dataclass
class Lane:
    """One scheduler under one case, and its timings so far."""

    case: Case
    contender: Contender
    times: list[RoundTimes] = field(default_factory=list)

    @property
    def round(self) -> Figures:
        """Figures of whole rounds."""
        return Figures.of([sum(times) for times in self.times])

    @property
    def parts(self) -> tuple[float, float, float]:
        """Median microseconds of plan, read and advance."""
        plan, read, advance = (Figures.of(part).median_us for part in zip(*self.times, strict=True))
        return plan, read, advance


@dataclass(frozen=True)
class Comparison:
    """Our round beside the reference's, from the same minute."""

    case: Case
    clock: str
    ours: Figures
    ours_parts: tuple[float, float, float]
    reference: Figures

    @property
    def ratio(self) -> Figures:
        """Below 1: ours is cheaper."""
        return self.ours.over(self.reference)


def clock_for(case: Case) -> tuple[str, Clock]:
    """CPU time of this thread, because on a shared machine the wall measures the neighbours.

    Reading it costs 0.6 us a time, too much beside a round of a few microseconds: those go by the wall.
    """
    return ("wall", time.perf_counter) if case.batch == 1 else ("thread CPU", time.thread_time)


def quickened(cases: Iterable[Case], *, rounds: int, max_tokens: int) -> list[Case]:
    """Fewer rounds, and no case whose contexts hold more than `max_tokens` together."""
    return [replace(case, rounds=min(case.rounds, rounds)) for case in cases if case.total_tokens <= max_tokens]


def compare(
    cases: Iterable[Case], ours: Callable[[Case], Contender], reference: Callable[[Case], Contender]
) -> Iterator[Comparison]:
    """Measure cases that differ only in context or in waiting prompts together, so that their ratios hold."""
    ordered = sorted(cases, key=alternated_together)
    for _, group in groupby(ordered, key=alternated_together):
        pairs = [(Lane(case, ours(case)), Lane(case, reference(case))) for case in group]
        lanes = [lane for pair in pairs for lane in pair]
        for lane in lanes:
            reach_decoding(lane.case, lane.contender)
        alternate(lanes)
        for mine, theirs in pairs:
            clock_name, _ = clock_for(mine.case)
            yield Comparison(mine.case, clock_name, mine.round, mine.parts, theirs.round)


def alternated_together(case: Case) -> tuple[str, int, int]:
    """What cases of one alternation have in common."""
    return case.workload, case.granularity, case.batch


def reach_decoding(case: Case, contender: Contender) -> None:
    """Run the prompts through until every one of the batch decodes and no prefill goes on."""
    for index in range(case.batch):
        contender.submit(f"decode-{index}", case.decode_prompt(index))
    for _ in range(case.warmup_rounds):
        contender.step()
    for index in range(case.waiting):
        contender.submit(f"wait-{index}", case.blocked_prompt(index))
    for _ in range(SETUP_ROUND_LIMIT):
        if contender.step() == (case.batch, 0):
            return
    raise RuntimeError(f"{contender.name} did not reach a full decode batch of {case.batch}")


def alternate(lanes: Sequence[Lane]) -> None:
    """Give each lane its rounds, a block at a time, in turns that change direction."""
    gc.collect()
    gc.freeze()  # what long-running servers do after start
    try:
        while waiting := [lane for lane in lanes if len(lane.times) < lane.case.rounds]:
            for lane in waiting:
                _, clock = clock_for(lane.case)
                for _ in range(BLOCK_ROUNDS):
                    lane.times.append(lane.contender.timed_round(clock))
            lanes = lanes[::-1]
    finally:
        gc.unfreeze()
