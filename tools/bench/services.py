"""Serve whole workloads on several schedulers, one after the other: W3 (prompts in), W4 (pressure), W5 (a trace)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tools.bench.lanes import Lane, Served
from tools.bench.workloads import Service


@dataclass(frozen=True)
class ServiceComparison:
    """One service on every scheduler that could take it: of each the turn with the median seconds."""

    workload: str
    name: str
    served: dict[str, Served]

    def ratio(self, ours: str, other: str) -> float:
        """Our seconds of scheduler time over the other's; below 1: ours is cheaper. Only complete services count."""
        return self.served[ours].seconds / self.served[other].seconds

    def are_complete(self, *names: str) -> bool:
        """Whether each of these was measured and came to its end, so that their seconds are of the same work."""
        return all(name in self.served and self.served[name].is_complete for name in names)


def shortened(services: Iterable[Service], *, repeats: int, seconds_limit: float) -> list[Service]:
    """Fewer turns, each given up sooner."""
    return [
        replace(service, repeats=min(service.repeats, repeats), seconds_limit=seconds_limit) for service in services
    ]


def compare_services(
    services: Iterable[Service], lanes_of: Callable[[Service], Sequence[Lane]]
) -> Iterator[ServiceComparison]:
    """Each service in turns that change direction."""
    for service in services:
        lanes = list(lanes_of(service))
        turns: dict[str, list[Served]] = {lane.name: [] for lane in lanes}
        for _ in range(service.repeats):
            for lane in lanes:
                turns[lane.name].append(lane.serve(service))
            lanes.reverse()
        yield ServiceComparison(service.workload, service.name, {name: _middle(of) for name, of in turns.items()})


def _middle(turns: Sequence[Served]) -> Served:
    return min(turns, key=lambda served: abs(served.seconds - median(turn.seconds for turn in turns)))
