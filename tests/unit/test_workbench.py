"""The workbench: a failing check is reported, measurements run and land on the page."""

import sys
import time
from pathlib import Path

import msgspec
import pytest

from control_plane import CacheGroupConfig, SchedulerConfig
from tools import check
from tools.bench.figures import Figures
from tools.bench.instructions import Counted, describe_instructions
from tools.bench.lanes import LocalLane, clock_for
from tools.bench.ours import EmbeddedScheduler, OurScheduler
from tools.bench.page import write_section
from tools.bench.planes import as_json
from tools.bench.reference import ReferenceScheduler
from tools.bench.report import describe_rounds, describe_services
from tools.bench.rounds import EMBEDDED, OURS, REFERENCE, Timed, alternate, compare, quickened
from tools.bench.services import compare_services
from tools.bench.serving import Arrival, steady_tokens_per_second
from tools.bench.soak import bytes_per_resident, describe_soak, soak
from tools.bench.workloads import (
    Case,
    Service,
    decode_cases,
    hybrid_cases,
    pressure_services,
    prompt_services,
    trace_services,
    waiting_cases,
)

CONFIG = SchedulerConfig(
    prefix_granularity=16,
    max_scheduled_tokens=128,
    max_batch_size=3,
    device_blocks=40,
    groups=(CacheGroupConfig(id="full", block_granularity=16),),
    max_context_tokens=192,
    mixed=False,
)
SMALL = Case("W1", "3 x 96", CONFIG, batch=3, context=96, max_new_tokens=64, rounds=32)


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
    assert [len(case.config.groups) for case in hybrid_cases()] == [2, 3, 4]
    assert {service.shared_tokens for service in prompt_services()} == {0, 7360}
    assert [service.declared for service in pressure_services()] == [8192, None]
    for case in [*decode_cases(), *hybrid_cases(), *waiting_cases()]:
        case.config.validate()
    for service in [*prompt_services(), *pressure_services()]:
        service.config.validate()
    lengths = [len(SMALL.decode_prompt(index)) for index in range(3)]
    assert lengths == [96, 95, 94]


@pytest.mark.parametrize("contender", [OurScheduler, EmbeddedScheduler, ReferenceScheduler])
def test_prompts_that_wait_do_not_disturb_what_is_measured(contender: type[OurScheduler | ReferenceScheduler]) -> None:
    """W6's smallest case with waiting prompts: every measured round is a full decode batch and no prefill."""
    case = quickened(waiting_cases(), rounds=16, max_tokens=200_000)[1]
    assert case.waiting == 16
    made = contender(case.config)
    timed = Timed(case, LocalLane(lambda config: made, "the one made above"))
    timed.lane.reach_decoding(case)
    alternate([timed])
    assert len(timed.times) == 16
    shape = made.serve_round(time.thread_time)
    assert (shape.decodes, shape.extends) == (case.batch, 0)


def test_schedulers_are_measured_in_one_run() -> None:
    """A small case gives figures for all three, a table with their ratios, and the same as JSON."""
    lanes = [
        LocalLane(OurScheduler, OURS),
        LocalLane(EmbeddedScheduler, EMBEDDED),
        LocalLane(ReferenceScheduler, REFERENCE),
    ]
    (comparison,) = compare([SMALL], lambda case: lanes)
    assert 0 < comparison.ours.min_us <= comparison.ours.median_us <= comparison.ours.p99_us
    reference = comparison.others[REFERENCE]
    assert comparison.ratio(REFERENCE).median_us == pytest.approx(comparison.ours.median_us / reference.median_us)
    assert "| 3 x 96 | thread CPU |" in describe_rounds([comparison])
    (row,) = as_json("facts", [comparison], [])["rounds"]
    assert row["ratios"][EMBEDDED]["min_us"] == comparison.ratio(EMBEDDED).min_us


@pytest.mark.parametrize("host_blocks", [0, 60])
def test_a_service_runs_to_its_end_on_both_schedulers(host_blocks: int) -> None:
    """Five prompts, two live at a time, half of each shared: the same tokens, and about the same of them hit."""
    config = msgspec.structs.replace(CONFIG, host_blocks=host_blocks, mixed=True)
    service = Service("W3", "small", config, requests=5, live=2, prompt=64, output=4, declared=8, shared_tokens=32)
    lanes = [LocalLane(OurScheduler, OURS), LocalLane(ReferenceScheduler, REFERENCE)]
    (comparison,) = compare_services([service], lambda service: lanes)
    ours, reference = comparison.served[OURS], comparison.served[REFERENCE]
    assert comparison.are_complete(OURS, REFERENCE)
    assert ours.finished == reference.finished == 5
    assert ours.prompt_tokens == reference.prompt_tokens == 5 * 64
    assert ours.output_tokens == reference.output_tokens == 5 * 3  # the first of each comes with its prompt
    assert 0.3 < ours.hit_rate <= 0.5
    assert ours.hit_rate >= reference.hit_rate
    assert f"small: {REFERENCE}" in describe_services([comparison])


def test_a_service_that_takes_too_long_is_given_up_and_has_no_ratio() -> None:
    """After the rounds that it may have: its seconds are of less work, so they are not compared."""
    service = Service("W4", "cut", CONFIG, requests=5, live=2, prompt=64, output=9, declared=9, round_limit=4)
    lanes = [LocalLane(OurScheduler, OURS), LocalLane(ReferenceScheduler, REFERENCE)]
    (comparison,) = compare_services([service], lambda service: lanes)
    assert not comparison.are_complete(OURS, REFERENCE)
    assert comparison.served[OURS].rounds == 4
    assert as_json("facts", [], [comparison])["services"][0]["ratios"] == {}


def test_a_trace_gives_the_prompts_that_its_rows_share(tmp_path: Path) -> None:
    """Equal hash ids are equal tokens; the last block is cut to the row's length."""
    trace = tmp_path / "two.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}\n'
        '{"timestamp": 9, "input_length": 700, "output_length": 0, "hash_ids": [4, 6]}\n'
    )
    (service,) = trace_services(trace, requests=2)
    first, second = service.prompts()
    assert (len(first.tokens), len(second.tokens)) == (600, 700)
    assert (first.output_tokens, second.output_tokens) == (3, 1)
    assert (first.tokens[:512] == second.tokens[:512]).all()
    assert (first.tokens[512:600] != second.tokens[512:600]).any()


def test_instructions_are_told_per_round_and_as_ratios() -> None:
    """Ours first, then each other one with ours over it."""
    counted = Counted(32, 1024, {"ours": 150_000.0, "theirs": 600_000.0})
    assert "| 32 x 1024 | 150.0 | 600.0 | 0.250 |" in describe_instructions([counted])


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


def test_a_soak_tells_what_grew_and_a_resident_request_has_a_price() -> None:
    """Few rounds, the same figures: memory is sampled, the books add up at the end, requests came and went."""
    done = soak(80)
    assert len(done.samples) > 10
    assert done.requests > 9
    assert done.growth_bytes == done.samples[-1].resident_bytes - done.samples[4].resident_bytes
    price = bytes_per_resident(SMALL)
    assert 200 < price < 20_000
    assert f"| 3 x 96 | {price:.0f} |" in describe_soak(done, [(SMALL, price)])
