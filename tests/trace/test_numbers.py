"""What `stats`, `diff`, `show --pool`, `cut`, `redact` and `export` say and write (J1, J4, J7)."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from control_plane import CacheGroupConfig, GroupKind, Scheduler, WireError
from control_plane.messages import ExtendResult, Finish, RequestSpec, Retract
from control_plane.messages.columns import pack
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.replay import replay
from control_plane.rounds.steps import Recording, Submitted
from control_plane.rounds.trace import TraceReader
from control_plane.rounds.writer import TraceWriter
from control_plane.testing.rounds import Rounds, small_config
from tokenspeed.cli import app
from tokenspeed.trace.numbers import numbers_of
from tokenspeed.trace.pool import Replayed
from tokenspeed.trace.why import why

SMALL: dict[str, Any] = {"pool": 12, "budget_tokens": 16, "batch": 2}


def overload(rounds: Rounds, path: Path, **changes: Any) -> Path:
    """Two requests that do not fit together: one is retracted, comes back when the other has left, and leaves."""
    rounds.record(path)
    rounds.configure(**{**SMALL, **changes})
    rounds.submit(a=20, b=20)
    rounds.run(14)
    rounds.abort("b")
    rounds.run(4)
    rounds.abort("a")
    rounds.run_to_end()
    rounds.close_record()
    return path


def invoke(*arguments: str | Path) -> Any:
    """Run a trace command."""
    return CliRunner().invoke(app, ["trace", *map(str, arguments)])


def test_a_run_in_numbers(rounds: Rounds, tmp_path: Path) -> None:
    """J1: cached tokens count the client's prompt once; what was found and computed again has numbers of its own."""
    path = overload(rounds, tmp_path / "run.rounds")
    numbers = numbers_of(Recording(path))
    assert (numbers.requests, numbers.finished, numbers.aborted, numbers.not_over) == (2, 0, 2, 0)
    assert (numbers.retractions, numbers.retracted_requests) == (1, 1)
    assert numbers.hit_rate == 0
    assert (numbers.found_again_tokens, numbers.computed_again_tokens) == (16, 9)
    assert numbers.output_tokens == sum(map(len, rounds.outputs.values()))
    assert numbers.pool_used_peak == 1.0
    assert numbers.retracted_ms is not None
    assert numbers.bytes_per_round > 0
    said = invoke("stats", path)
    assert "retractions" in said.stdout
    assert json.loads(invoke("stats", path, "--json").stdout)["retractions"] == 1


def test_a_prompt_counts_its_hit_once(rounds: Rounds, tmp_path: Path) -> None:
    """J1: prompt 24, first hit 8, then retracted twice: cached 8 of 24, however much of it was found again."""
    path = tmp_path / "run.rounds"
    rounds.record(path)
    rounds.configure(budget_tokens=64, pool=64)
    prompt = list(range(24))
    rounds.submit(tokens={"first": [*prompt[:8], 99]}, first=(9, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"a": prompt}, a=(24, 8))
    for _ in range(2):
        rounds.run(3)
        rounds.land_all()
        rounds.deliver(Retract(rounds.keys["a"]))
    rounds.run_to_end()
    rounds.close_record()
    (life,) = why(path, "a")
    assert (life.prompt_tokens, life.cached_tokens, life.output_tokens, life.retractions) == (24, 8, 8, 2)
    assert life.found_again_tokens > 0


def test_pools_of_shared_parents_add_up(rounds: Rounds, tmp_path: Path) -> None:
    """J4: full, sliding and state groups over 20 parents: used, cached and free are 20 in every round, by group too."""
    groups = (
        CacheGroupConfig("full", block_granularity=4, packing=2),
        CacheGroupConfig("sliding", GroupKind.SLIDING, block_granularity=4, packing=2, window=8),
        CacheGroupConfig("state", GroupKind.STATE, block_granularity=4),
    )
    path = tmp_path / "run.rounds"
    rounds.record(path)
    rounds.configure(pool=20, batch=3, budget_tokens=32, groups=groups)
    rounds.submit(a=(14, 6), b=(9, 5), c=(18, 4))
    rounds.run_to_end()
    rounds.close_record()
    replayed = Replayed(Recording(path).header.config)
    seen = 0
    for step in Recording(path):
        replayed.take(step)
        stats = replayed.scheduler.stats()
        assert stats.used_blocks + stats.cached_blocks + stats.free_blocks == 20
        assert sum(group.used_blocks for group in stats.groups) == stats.used_blocks
        assert sum(group.cached_blocks for group in stats.groups) == stats.cached_blocks
        seen = max(seen, stats.used_blocks)
    assert replayed.differs_at is None
    assert seen > 5
    said = invoke("show", path, "--pool", "--rounds", "2:2").stdout.splitlines()
    assert [line.split()[0] for line in said[1:4]] == ["full", "sliding", "state"]
    assert "a a, b b" in said[4]
    for line in said[1:4]:
        assert set("".join(line.split()[1:])) <= set("abc.-+ ")


def test_one_character_a_block(rounds: Rounds, tmp_path: Path) -> None:
    """`show --pool`: whose each block is, what is shared, cached and free."""
    path = tmp_path / "run.rounds"
    rounds.record(path)
    rounds.configure(pool=12, budget_tokens=64)
    prompt = list(range(8))
    rounds.submit(tokens={"a": [*prompt, 77]}, a=(9, 6))
    rounds.run(2)
    rounds.submit(tokens={"b": [*prompt, 88]}, b=(9, 2))
    rounds.run_to_end()
    rounds.submit(c=(4, 2))
    rounds.run_to_end()
    rounds.close_record()
    said = invoke("show", path, "--pool").stdout.splitlines()
    assert said[:3] == ["1 | prefill a[0:9)", "    full aaaa........", "    a a"]
    assert any(line.startswith("    full ++aab") for line in said)
    assert any("-" in line and "full" in line for line in said)


def test_emitted_tokens_are_counted(tmp_path: Path) -> None:
    """J7: of six tokens of a step the third is a stop token: 3 are emitted, the others are told apart."""
    path = tmp_path / "run.rounds"
    writer = TraceWriter(path, small_config(decode_width=6))
    recorder = RecordingScheduler(Scheduler(small_config(decode_width=6)), writer)
    recorder.submit([RequestSpec("a", pack(range(8)), 20, stop_token_ids=(3,))])
    first = recorder.next_plan()
    assert first.forward is not None
    recorder.advance([ExtendResult(1, first.forward.keys, pack([1]), pack([9]))])
    second = recorder.next_plan()
    assert second.forward is not None
    steps = ExtendResult(2, second.forward.keys, pack([6]), pack([1, 2, 3, 4, 5, 6]))
    recorder.advance([steps, Finish(1)])
    writer.close()
    numbers = numbers_of(Recording(path))
    assert (numbers.output_tokens, numbers.discarded_tokens) == (1 + 3, 3)


def test_two_recordings_side_by_side(tmp_path: Path) -> None:
    """`diff`: settings, the first plan that differs and by which field, numbers of both; the exit code says it."""
    one = overload(Rounds(), tmp_path / "one.rounds")
    same = overload(Rounds(), tmp_path / "same.rounds")
    other = overload(Rounds(), tmp_path / "other.rounds", pool=14)
    said = invoke("diff", one, same)
    assert said.exit_code == 0
    assert "plans are the same" in said.stdout
    said = invoke("diff", one, other)
    assert said.exit_code == 1
    assert "device_blocks: 12 -> 14" in said.stdout
    assert "round 7 is the first that differs:" in said.stdout
    assert "forward.keys" in said.stdout
    assert "retractions" in said.stdout
    told = json.loads(invoke("diff", one, other, "--json").stdout)
    assert told["comparison"]["first"]["round"] == 7


def test_a_window_of_rounds(rounds: Rounds, tmp_path: Path) -> None:
    """`cut`: from the first round on it replays; from a later one it begins with who was there, and is told alike."""
    path = overload(rounds, tmp_path / "run.rounds")
    begin, middle = tmp_path / "begin.rounds", tmp_path / "middle.rounds"
    assert "9 rounds written" in invoke("cut", path, begin, "--rounds", ":9").stdout
    assert replay(begin).rounds == 9
    assert "8 rounds written" in invoke("cut", path, middle, "--rounds", "8:15").stdout
    assert TraceReader(middle).header.part == 1
    told = invoke("show", middle).stdout.splitlines()
    assert told == invoke("show", path).stdout.splitlines()[7:15]
    with pytest.raises(WireError, match="begins in the middle of a run"):
        replay(middle)
    (life,) = why(middle, "a")
    assert [phase.kind.value for phase in life.phases][:2] == ["decoding", "retracted"]
    said = invoke("cut", path, middle, "--rounds", "99:")
    assert said.exit_code == 2
    assert "has no round 99 or later; its last one is" in said.stderr
    assert invoke("cut", path, path, "--rounds", "1:2").exit_code == 2
    assert "must be first:last" in invoke("cut", path, middle, "--rounds", "9:1").stderr


def test_an_existing_recording_is_redacted(rounds: Rounds, tmp_path: Path) -> None:
    """The schedule stays, byte by byte where no token is; no run of a prompt's tokens and no name is left."""
    path = overload(rounds, tmp_path / "run.rounds")
    target = tmp_path / "redacted.rounds"
    assert "replays to the same schedule" in invoke("redact", path, target).stdout
    assert replay(target).difference is None
    assert replay(target).rounds == replay(path).rounds
    assert TraceReader(target).header.redacted
    hidden = target.read_bytes()
    prompts = [spec.tokens for step in Recording(path) if isinstance(step, Submitted) for spec in step.specs]
    assert len(prompts) == 2
    for prompt in prompts:
        assert prompt in path.read_bytes()
        for begin in range(0, len(prompt) - 16, 4):
            assert prompt[begin : begin + 16] not in hidden
    before, after = (invoke("show", file).stdout for file in (path, target))
    names = {spec.id for step in Recording(target) if isinstance(step, Submitted) for spec in step.specs}
    assert not names & {"a", "b"}
    assert len(after.splitlines()) == len(before.splitlines())


def test_every_step_as_json(rounds: Rounds, tmp_path: Path) -> None:
    """`export`: a heading, then submissions, events and plans, columns as lists."""
    path = overload(rounds, tmp_path / "run.rounds")
    lines = [json.loads(line) for line in invoke("export", path).stdout.splitlines()]
    assert lines[0]["config"]["device_blocks"] == 12
    assert [line["kind"] for line in lines[1:3]] == ["submitted", "submitted"]
    assert lines[1]["tokens"] == list(range(1_000_000, 1_000_020))
    plans = [line for line in lines if line["kind"] == "plan"]
    assert plans[0]["forward"]["keys"] == [1]
    assert {line["event"] for line in lines if line["kind"] == "event"} >= {"ExtendResult", "Abort"}
    target = tmp_path / "run.jsonl"
    invoke("export", path, target)
    assert len(target.read_text().splitlines()) == len(lines)
