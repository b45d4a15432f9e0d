"""The workbench: a failing check is reported, measurements run and land on the page."""

import sys
import time
from pathlib import Path

import pytest

from tools import check
from tools.bench.figures import Figures
from tools.bench.ours import OurScheduler
from tools.bench.page import write_section
from tools.bench.reference import ReferenceScheduler
from tools.bench.report import describe_rounds
from tools.bench.rounds import Lane, alternate, clock_for, compare, quickened, reach_decoding
from tools.bench.serving import Arrival, steady_tokens_per_second
from tools.bench.workloads import Case, decode_cases, waiting_cases

SMALL = Case(
    workload="W1", batch=3, context=96, granularity=16, pool_blocks=40, max_new_tokens=64, budget=128, rounds=32
)


def test_a_failing_check_is_named_and_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """What the failing check printed is shown, and the good one's output is not."""
    checks = {
        "good": (sys.executable, "-c", "print('all is ' + 'well')"),
        "bad": (sys.executable, "-c", "import sys; print('line 3 ' + 'is odd'); sys.exit(1)"),
    }
    results = [(name, check.run_quietly(command)) for name, command in checks.items()]
    assert check.report(results) == ["bad"]
    printed = capfd.readouterr().out
    assert "== good: ok" in printed
    assert "== bad: FAILED" in printed
    assert "line 3 is odd" in printed
    assert "all is well" not in printed


def test_the_definitions_are_the_agreed_ones() -> None:
    """W1 reaches from one request to 1024 and to 128K of context; W6 from no waiting prompt to 256."""
    contexts = {case.context for case in decode_cases() if case.granularity == 64}
    assert contexts == {1024, 8192, 32768, 131072}
    assert {case.batch for case in decode_cases()} == {1, 32, 64, 256, 1024}
    assert [case.waiting for case in waiting_cases()] == [0, 16, 64, 256]
    lengths = [len(SMALL.decode_prompt(index)) for index in range(3)]
    assert lengths == [96, 95, 94]


@pytest.mark.parametrize("contender", [OurScheduler, ReferenceScheduler])
def test_prompts_that_wait_do_not_disturb_what_is_measured(contender: type[OurScheduler | ReferenceScheduler]) -> None:
    """W6's smallest case with waiting prompts: every measured round is a full decode batch and no prefill."""
    case = quickened(waiting_cases(), rounds=16, max_tokens=200_000)[1]
    assert case.waiting == 16
    lane = Lane(case, contender(case))
    reach_decoding(case, lane.contender)
    alternate([lane])
    assert len(lane.times) == 16
    assert lane.contender.step() == (case.batch, 0)


def test_both_schedulers_are_measured_in_one_run() -> None:
    """A small case gives figures for both, and a table with their ratio."""
    (comparison,) = compare([SMALL], OurScheduler, ReferenceScheduler)
    assert 0 < comparison.ours.min_us <= comparison.ours.median_us <= comparison.ours.p99_us
    assert comparison.ratio.median_us == pytest.approx(comparison.ours.median_us / comparison.reference.median_us)
    assert "| 3 x 96, pages of 16 | thread CPU |" in describe_rounds([comparison])


def test_a_lone_request_is_timed_by_the_wall() -> None:
    """Reading the CPU clock would be a large part of such a short round."""
    lone = decode_cases()[0]
    assert lone.batch == 1
    assert clock_for(lone) == ("wall", time.perf_counter)
    assert clock_for(SMALL) == ("thread CPU", time.thread_time)


def test_figures_are_microseconds() -> None:
    """Median, least and the 99th of a hundred."""
    figures = Figures.of([index / 1e6 for index in range(1, 101)])
    assert (figures.median_us, figures.min_us, figures.p99_us) == pytest.approx((50.5, 1.0, 99.0))


def test_figures_replace_the_ones_before(tmp_path: Path) -> None:
    """Only what stands between the markers changes; a page without them is refused."""
    page = tmp_path / "performance.md"
    page.write_text("# Page\n\n<!-- rounds: begin -->\nold\n<!-- rounds: end -->\n\nMore.\n")
    write_section("rounds", "new figures\n", page)
    assert page.read_text() == "# Page\n\n<!-- rounds: begin -->\n\nnew figures\n\n<!-- rounds: end -->\n\nMore.\n"
    with pytest.raises(ValueError, match="lacks the markers"):
        write_section("serving", "figures", page)


def test_decoding_is_paced_while_every_stream_runs() -> None:
    """Two streams, one starting later and one ending sooner: only the seconds that they share count."""
    early = [Arrival(at=second, tokens=int(second)) for second in (1.0, 2.0, 3.0, 4.0)]
    late = [Arrival(at=2.0, tokens=1), Arrival(at=4.0, tokens=5), Arrival(at=6.0, tokens=9)]
    assert steady_tokens_per_second([early, late]) == ((4 - 2) + (5 - 1)) / (4.0 - 2.0)
    with pytest.raises(RuntimeError, match="side by side"):
        steady_tokens_per_second([early, [Arrival(at=9.0, tokens=1), Arrival(at=10.0, tokens=2)]])
