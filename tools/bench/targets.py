"""What was promised (the design's targets), what was measured, and whether it is so. All from one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.bench.figures import markdown_table
from tools.bench.rounds import OURS, RECORDED, REFERENCE, VLLM, Comparison
from tools.bench.services import ServiceComparison


@dataclass(frozen=True)
class Measured:
    """The figures of one run."""

    rounds: Sequence[Comparison]
    services: Sequence[ServiceComparison]
    stream_us: float | None = None
    idle_ms: float | None = None
    resident_bytes: float | None = None
    growth_bytes: int | None = None


@dataclass(frozen=True)
class Target:
    """One promise. `figure` finds what was measured (None: it was not); it is kept by a figure up to `limit`."""

    what: str
    limit: float
    unit: str
    figure: Callable[[Measured], float | None]


def describe_targets(measured: Measured) -> str:
    """One row a target."""
    return markdown_table(["target", "of what", "at most", "measured", ""], rows_of_targets(measured))


def rows_of_targets(measured: Measured) -> list[list[str]]:
    """What, of what, at most, measured, and the verdict."""
    rows = []
    for target in TARGETS:
        figure = target.figure(measured)
        told = "not measured" if figure is None else f"{figure:.4g}"
        verdict = "" if figure is None else "met" if figure <= target.limit else "**missed**"
        rows.append([target.what, target.unit, f"{round(target.limit, 3):g}", told, verdict])
    return rows


def round_ratio(case: str, other: str) -> Callable[[Measured], float | None]:
    """Medians of a case's rounds, ours over another's."""

    def figure(measured: Measured) -> float | None:
        for comparison in measured.rounds:
            if comparison.name == case and other in comparison.others:
                return comparison.ratio(other).median_us
        return None

    return figure


def our_round(case: str) -> Callable[[Measured], float | None]:
    """Our median of a case, microseconds."""
    return lambda measured: next((each.ours.median_us for each in measured.rounds if each.name == case), None)


def growth(large: str, small: str) -> Callable[[Measured], float | None]:
    """Our median of one case over that of another."""

    def figure(measured: Measured) -> float | None:
        figures = our_round(large)(measured), our_round(small)(measured)
        return None if figures[0] is None or figures[1] is None else figures[0] / figures[1]

    return figure


def recording(case: str) -> Callable[[Measured], float | None]:
    """What recording adds to a round, as a share of it."""

    def figure(measured: Measured) -> float | None:
        ratio = round_ratio(case, RECORDED)(measured)
        return None if ratio is None else 1 / ratio - 1

    return figure


def service_ratio(workload: str, case: str, other: str) -> Callable[[Measured], float | None]:
    """Our scheduler seconds of a service over another's."""

    def figure(measured: Measured) -> float | None:
        for service in measured.services:
            if service.workload == workload and service.name.startswith(case) and service.are_complete(OURS, other):
                return service.ratio(OURS, other)
        return None

    return figure


def lost_hits(measured: Measured) -> float | None:
    """How much lower our hit rate is than the reference's on the recorded conversation."""
    for service in measured.services:
        if service.workload == "W5" and REFERENCE in service.served:
            return service.served[REFERENCE].hit_rate - service.served[OURS].hit_rate
    return None


OF_TS, OF_VLLM = "of the reference's round", "of vLLM's round"
TARGETS = (
    Target("W1 1 x 1K", 25, "us by the wall", our_round("1 x 1024, pages of 64")),
    Target("W1 32 x 1K", 1.0, OF_TS, round_ratio("32 x 1024, pages of 64", REFERENCE)),
    Target("W1 32 x 8K", 0.5, OF_TS, round_ratio("32 x 8192, pages of 64", REFERENCE)),
    Target("W1 256 x 1K", 0.35, OF_TS, round_ratio("256 x 1024, pages of 64", REFERENCE)),
    Target("W1 256 x 8K", 0.07, OF_TS, round_ratio("256 x 8192, pages of 64", REFERENCE)),
    Target("W1 256 x 32K", 0.02, OF_TS, round_ratio("256 x 32768, pages of 64", REFERENCE)),
    Target("W1 flat", 1.15, "256 x 32K over 256 x 1K", growth("256 x 32768, pages of 64", "256 x 1024, pages of 64")),
    Target("W1 flat", 1.15, "256 x 128K over 256 x 1K", growth("256 x 131072, pages of 64", "256 x 1024, pages of 64")),
    Target("W2 full + window", 0.1, OF_TS, round_ratio("full+window, 256 x 8192", REFERENCE)),
    Target("W2 full + window + state", 0.1, OF_TS, round_ratio("full+window+state, 256 x 8192", REFERENCE)),
    Target("W2 four histories", 0.1, OF_TS, round_ratio("four full histories, 256 x 8192", REFERENCE)),
    Target("W3 no sharing", 1.0, "of the reference's seconds", service_ratio("W3", "no sharing g64", REFERENCE)),
    Target("W3 no sharing", 1 / 3, "of vLLM's seconds", service_ratio("W3", "no sharing g64", VLLM)),
    Target("W3 90 % shared", 1.5, "of the reference's seconds", service_ratio("W3", "90% shared g64", REFERENCE)),
    Target("W3 90 % shared", 1 / 3, "of vLLM's seconds", service_ratio("W3", "90% shared g64", VLLM)),
    Target("W5 conversation", 0.2, "of the reference's seconds", service_ratio("W5", "", REFERENCE)),
    Target("W5 hit rate", 0.0, "below the reference's", lost_hits),
    Target("W6 256 waiting", 0.01, OF_TS, round_ratio("256 waiting, 16 decoding", REFERENCE)),
    Target("W6 256 waiting", 1.0, OF_VLLM, round_ratio("256 waiting, 16 decoding", VLLM)),
    Target("recording, 256 x 1K", 0.05, "of the round", recording("256 x 1024, pages of 64")),
    Target("recording, 32 x 1K", 0.05, "of the round", recording("32 x 1024, pages of 64")),
    Target("streaming, 64 streams", 60, "us of processor time a token", lambda measured: measured.stream_us),
    Target("idle", 20, "ms of processor time in 10 s", lambda measured: measured.idle_ms),
    Target("a resident request of 1K", 2048, "bytes beside 4 a token", lambda measured: measured.resident_bytes),
    Target("growth over the soak", 1_048_576, "bytes", lambda measured: measured.growth_bytes),
)
