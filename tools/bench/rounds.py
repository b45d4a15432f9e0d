"""Time the rounds of several schedulers in alternation: W1 and W2 (decoding) and W6 (prompts that wait)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tools.bench.contender import RoundTimes
from tools.bench.figures import Figures
from tools.bench.lanes import Lane, clock_for
from tools.bench.workloads import Case

BLOCK_ROUNDS = 16  # rounds of one scheduler before the next has its turn

OURS, EMBEDDED, RECORDED = "tokenspeed", "tokenspeed, embedded", "tokenspeed, recorded"
REFERENCE, VLLM = "tokenspeed-scheduler", "vLLM"


@dataclass
class Timed:
    """A lane under a case, and its timings so far."""

    case: Case
    lane: Lane
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
    """One case: our round beside the others', by name, from the same minute."""

    workload: str
    name: str
    clock: str
    alternated_with: str
    ours: Figures
    ours_parts: tuple[float, float, float]
    others: dict[str, Figures]

    def ratio(self, other: str) -> Figures:
        """Below 1: ours is cheaper."""
        return self.ours.over(self.others[other])


def quickened(cases: Iterable[Case], *, rounds: int, max_tokens: int) -> list[Case]:
    """Fewer rounds, and no case whose contexts hold more than `max_tokens` together."""
    return [replace(case, rounds=min(case.rounds, rounds)) for case in cases if case.total_tokens <= max_tokens]


def compare(cases: Iterable[Case], lanes_of: Callable[[Case], Sequence[Lane]]) -> Iterator[Comparison]:
    """Measure cases that differ only in context or in waiting prompts together, so that their ratios hold.

    `lanes_of` makes the lanes of a case; the first of them is ours.
    """
    ordered = sorted(cases, key=alternated_together)
    for together, group in groupby(ordered, key=alternated_together):
        measured = [[Timed(case, lane) for lane in lanes_of(case)] for case in group]
        everybody = [timed for of_case in measured for timed in of_case]
        for timed in everybody:
            timed.lane.reach_decoding(timed.case)
        alternate(everybody)
        for of_case in measured:
            ours, *others = of_case
            yield Comparison(
                workload=ours.case.workload,
                name=ours.case.name,
                clock=clock_for(ours.case)[0],
                alternated_with=" ".join(str(part) for part in together),
                ours=ours.round,
                ours_parts=ours.parts,
                others={other.lane.name: other.round for other in others},
            )
        for timed in everybody:
            timed.lane.drop()


def alternated_together(case: Case) -> tuple[str, int, int]:
    """What cases of one alternation have in common."""
    return case.workload, case.granularity, case.batch


def alternate(timed: Sequence[Timed]) -> None:
    """Give each lane its rounds, a block at a time, in turns that change direction."""
    while waiting := [each for each in timed if len(each.times) < each.case.rounds]:
        for each in waiting:
            each.times += each.lane.rounds(each.case, BLOCK_ROUNDS)
        timed = timed[::-1]
