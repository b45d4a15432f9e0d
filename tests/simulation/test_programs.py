"""The words of a program, one at a time; and how a failing one is made short and printed."""

import pytest
from msgspec import structs

from control_plane.scheduler.scheduler import Scheduler
from tools.simulate.program import Fail, Group, Latency, Leave, Program, Run, Setting, Submit, Withhold
from tools.simulate.report import failure_report, summary_line
from tools.simulate.run import run, simulate
from tools.simulate.shrink import shrink

PRESSED = Setting(pool=12, host_blocks=40, overlap_depth=1, safe_steps=8)
CROWD = tuple(Submit(own_tokens=4 + index) for index in range(4))


def test_a_quiet_program_ends_well() -> None:
    """Everybody gets all that was asked for, and nothing else happens."""
    outcome = run(Program(Setting(), (Submit(own_tokens=9, max_new_tokens=5), Submit(own_tokens=3, max_new_tokens=2))))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 2}
    assert outcome.figures.generated_tokens == 7
    assert outcome.figures.retractions == 0


def test_a_prompt_that_could_never_run_is_refused() -> None:
    """A refusal is no failure."""
    outcome = run(Program(Setting(), (Submit(own_tokens=1000), Submit())))
    assert outcome.failure is None
    assert outcome.figures.refused == 1


def test_pressure_retracts_and_the_host_tier_brings_back() -> None:
    """Four requests that grow until the pool is full: they give way to each other and all end."""
    outcome = run(Program(PRESSED, CROWD))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 4}
    assert outcome.figures.retractions > 0
    assert outcome.figures.loaded_blocks > 0


def test_clients_leave() -> None:
    """One gives up, one has what it wanted; who is gone already cannot leave again."""
    steps = (*CROWD, Run(3), Leave(0), Leave(1, is_content=True), Leave(0), Leave(17))
    outcome = run(Program(Setting(), steps))
    assert outcome.failure is None
    assert outcome.figures.ends == {"abort": 1, "content": 1, "length": 2}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failing_forward_ends_its_requests(is_late: bool) -> None:
    """Whoever is in it gets an error, whoever comes later does not."""
    outcome = run(Program(Setting(), (*CROWD, Run(2), Fail("forward", is_late), Run(3), Submit(max_new_tokens=4))))
    assert outcome.failure is None
    assert outcome.figures.ends == {"error": 4, "length": 1}


def test_a_withheld_forward_costs_time_only() -> None:
    """All its requests retract and say what they would have said."""
    outcome = run(Program(Setting(overlap_depth=1), (*CROWD, Latency(3, 4), Run(6), Withhold())))
    assert outcome.failure is None
    assert outcome.figures.ends == {"length": 4}
    assert outcome.figures.retractions == 4


@pytest.mark.parametrize("what", ["store", "load"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_failing_copy_costs_time_only(what: str, is_late: bool) -> None:
    """What is not on the host, or did not come from there, is computed again."""
    well = run(Program(PRESSED, CROWD))
    badly = run(Program(PRESSED, (Fail(what, is_late), *CROWD)))  # type: ignore[arg-type]
    assert badly.failure is None
    assert badly.figures.ends == {"length": 4}
    assert badly.digest != well.digest


def test_a_drawn_program_runs_again() -> None:
    """What a seed did is all in its program."""
    drawn = simulate(3, rounds=60)
    assert run(drawn.program).digest == drawn.digest


def test_a_failure_is_made_short_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that forgets who was thrown out: found, reduced to a few steps, and printed as a test that fails."""
    monkeypatch.setattr(Scheduler, "void_keys", lambda self, round_number: frozenset())
    steps = (*CROWD, Run(2), Leave(2), Run(2), Latency(2, 2), Submit(shared_tokens=8), Run(3), Withhold(), Run(9))
    setting = structs.replace(PRESSED, groups=(Group(), Group("sliding", window=9)), pool=40)
    outcome = run(Program(setting, steps, seed=7))
    assert outcome.failure is not None
    assert outcome.failure.kind == "tokens"
    shrunk = shrink(outcome)
    assert shrunk.failure is not None
    assert shrunk.failure.kind == "tokens"
    assert len(shrunk.program.steps) <= 3
    assert shrunk.program.setting.groups == (Group(),)

    report = failure_report(outcome, shrunk)
    assert "FAILED (tokens)" in summary_line(outcome)
    assert report.startswith("seed 7, round ")
    assert "| decode r0" in report
    text = report[report.index("def test_seed_7() -> None:") :]
    words: dict[str, object] = dict(globals())
    exec(text, words)
    with pytest.raises(AssertionError):
        words["test_seed_7"]()  # type: ignore[operator]


def test_a_program_that_does_not_fail_cannot_be_made_short() -> None:
    """There would be nothing to keep."""
    with pytest.raises(AssertionError, match="does not fail"):
        shrink(run(Program(Setting(), ())))
