"""The table of targets: every row finds its figure, and says what it was judged by."""

import asyncio
from pathlib import Path

from tools.bench.figures import Figures
from tools.bench.lanes import Served
from tools.bench.rounds import OURS, RECORDED, REFERENCE, VLLM, Comparison
from tools.bench.services import ServiceComparison
from tools.bench.streaming import Streamed, _loop_alone, describe_streaming
from tools.bench.targets import TARGETS, Measured, describe_targets
from tools.bench.workloads import decode_cases, flat_case, hybrid_cases, prompt_services, trace_services, waiting_cases


def comparison(workload: str, name: str, *, ours_us: float, theirs_us: float) -> Comparison:
    """Ours beside everybody else, who all take as long."""
    ours, theirs = Figures(ours_us, ours_us, ours_us), Figures(theirs_us, theirs_us, theirs_us)
    return Comparison(
        workload, name, "wall", name, ours, (1.0, 1.0, 1.0), dict.fromkeys((RECORDED, REFERENCE, VLLM), theirs)
    )


def served(seconds: float, *, is_complete: bool = True) -> Served:
    """A service that took so long."""
    return Served(0.0, seconds, 1.0, 1, 100, 90, 9, 1, is_complete)


def whole_run(*, ours_us: float, theirs_us: float) -> Measured:
    """Every case and service of the definitions, all with the same figures."""
    cases = [*decode_cases(), flat_case(), *hybrid_cases(), *waiting_cases()]
    services = [*prompt_services(), *trace_services(Path("conversation.jsonl"))]
    return Measured(
        rounds=[comparison(case.workload, case.name, ours_us=ours_us, theirs_us=theirs_us) for case in cases],
        services=[
            ServiceComparison(
                service.workload,
                service.name,
                {OURS: served(ours_us), REFERENCE: served(theirs_us), VLLM: served(theirs_us)},
            )
            for service in services
        ],
        stream_us=50.0,
        idle_ms=10.0,
        resident_bytes=1000.0,
        growth_bytes=0,
    )


def test_every_target_finds_its_figure_in_a_whole_run() -> None:
    """No row names a case that there is not."""
    measured = whole_run(ours_us=1.0, theirs_us=1000.0)
    assert [target.what for target in TARGETS if target.figure(measured) is None] == []
    others = [line for line in describe_targets(measured).splitlines() if "recording" not in line]
    assert "missed" not in "".join(others)


def test_a_target_that_is_missed_or_not_measured_says_so() -> None:
    """Ours dearer than everybody; and a run of nothing."""
    text = describe_targets(whole_run(ours_us=1000.0, theirs_us=1.0))
    assert "| W1 32 x 1K | of the reference's round | 1 | 1000 | **missed** |" in text
    assert "**missed**" not in describe_targets(Measured([], []))
    assert "| W1 1 x 1K | us by the wall | 25 | not measured |  |" in describe_targets(Measured([], []))


def test_a_service_that_was_given_up_is_not_measured() -> None:
    """Seconds of less work are no figure."""
    services = [ServiceComparison("W5", "x", {OURS: served(1.0), REFERENCE: served(9.0, is_complete=False)})]
    row = next(line for line in describe_targets(Measured([], services)).splitlines() if "W5 conversation" in line)
    assert "not measured" in row


def test_the_loop_streams_every_token_through_the_answering_thread() -> None:
    """Rounds over a real thread: all tokens arrive, and their price is told layer by layer."""
    streamed = asyncio.run(_loop_alone(3, 8))
    assert streamed.tokens == 24
    assert streamed.us_per_token > 0
    text = describe_streaming([streamed, Streamed("outer", 3, 24, streamed.cpu_s + 24e-6)], 5.0)
    assert "| outer | 3 |" in text
    assert text.splitlines()[3].endswith("| 1.0 |")
