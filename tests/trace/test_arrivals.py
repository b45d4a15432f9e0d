"""Public traces become arrivals, and are played as written (J5, J6)."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from control_plane import WireError
from control_plane.messages.columns import view
from control_plane.rounds.steps import Recording, Submitted
from tokenspeed.cli import app
from tokenspeed.trace.arrivals import Arrival, Arrivals, faster, in_order, read, scaled, write
from tokenspeed.trace.cost import preset
from tokenspeed.trace.imports import Source, load
from tokenspeed.trace.lives import Lives
from tokenspeed.trace.numbers import numbers_of
from tokenspeed.trace.settings import changed, config_for
from tokenspeed.trace.trying import Device, device_of
from tokenspeed.trace.virtual import Outcome, VirtualRun


def played(path: Path, arrivals: Arrivals, *settings: str, device: Device = Device.SCRIPT) -> Outcome:
    """Arrivals served in virtual time, a millisecond a round."""
    config = changed(config_for(arrivals), settings)
    return VirtualRun(config, arrivals, preset("unit"), device_of(device, config), path).run()


def mooncake(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of rows."""
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def row(timestamp: Any, tokens: int, output: int, ids: list[int]) -> dict[str, Any]:
    """A row as Mooncake writes it."""
    return {"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": ids}


def test_a_trace_is_played_as_written(tmp_path: Path) -> None:
    """J6: 22 requests, all at their times whatever is still running, shared ids are shared tokens, plans repeat."""
    rows = [row(10 * n, 1025 + n, 40, [7, 8, 100 + n]) for n in range(22)]
    arrivals, _ = load(mooncake(tmp_path / "t.jsonl", rows), Source.MOONCAKE)
    specs = list(arrivals.specs())
    first, second = (view(spec.tokens).tolist() for spec in specs[1:3])
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024 : len(first)]
    one, two = tmp_path / "one.rounds", tmp_path / "two.rounds"
    played(one, arrivals)
    played(two, arrivals)
    assert one.read_bytes() == two.read_bytes()
    recording = Recording(one)
    lives, most_at_once = Lives(recording.header), 0
    for step in recording:
        lives.take(step)
        most_at_once = max(most_at_once, len(lives.live))
    assert most_at_once > 3
    assert numbers_of(Recording(one)).finished == 22


def test_a_row_with_too_many_ids_is_refused(tmp_path: Path) -> None:
    """J6: by its number; it can be left out on request, and that is said."""
    path = mooncake(tmp_path / "t.jsonl", [row(0, 600, 4, [1, 2]), row(1, 600, 4, [1, 2, 3]), row(2, 600, 4, [1, 2])])
    with pytest.raises(WireError, match="row 2: 3 hash_ids for input_length=600, which has 2 blocks"):
        load(path, Source.MOONCAKE)
    arrivals, left_out = load(path, Source.MOONCAKE, skip_bad_rows=True)
    assert [arrival.id for arrival in arrivals.requests] == ["r1", "r3"]
    assert left_out == ["row 2: 3 hash_ids for input_length=600, which has 2 blocks of 512 tokens"]


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "soon", None, True])
def test_bad_times_are_refused_with_their_row(tmp_path: Path, bad: Any) -> None:
    """J5: negative, no number, none at all."""
    path = mooncake(tmp_path / "t.jsonl", [row(0, 5, 4, [1]), row(bad, 5, 4, [1])])
    with pytest.raises(WireError, match="row 2: timestamp="):
        load(path, Source.MOONCAKE)


def test_times_begin_at_zero_and_rows_keep_their_order(tmp_path: Path) -> None:
    """J5: epoch times, a first time of 37.2, unsorted rows, equal times."""
    times = [1_700_000_000_037.2, 1_700_000_000_040, 1_700_000_000_037.2, 1_700_000_000_039]
    path = mooncake(tmp_path / "t.jsonl", [row(at, 5, 4, [1]) for at in times])
    arrivals, _ = load(path, Source.MOONCAKE)
    assert [(arrival.id, arrival.at_us) for arrival in arrivals.requests] == [
        ("r1", 0),
        ("r3", 0),
        ("r4", 1800),
        ("r2", 2800),
    ]


@pytest.mark.parametrize("speed", [0, -1, float("inf"), float("nan")])
def test_speeds_that_are_none_are_refused(speed: float) -> None:
    """J5: with the value."""
    with pytest.raises(WireError, match=f"speed={speed}"):
        faster(Arrivals((), 512), speed)


def test_requests_are_submitted_when_they_come(tmp_path: Path) -> None:
    """J5: nothing drifts: the last of 2,000 requests is less than a round late, and so is every other."""
    requests = in_order(Arrival(n * 1000, f"r{n}", 4, 1) for n in range(2000))
    path = tmp_path / "run.rounds"
    played(path, faster(Arrivals(requests, 16), 2.0))
    late = [
        step.time_us - 500 * (key - 1) for step in Recording(path) if isinstance(step, Submitted) for key in step.keys
    ]
    assert len(late) == 2000
    assert 0 <= min(late) <= max(late) < 1000


def test_azure_rows(tmp_path: Path) -> None:
    """Seven digits of a second, CRLF, no sharing; a file of something else is named as such."""
    path = tmp_path / "azure.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    path.write_text(head + "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n")
    arrivals, _ = load(path, Source.AZURE)
    assert [(a.at_us, a.prompt_tokens, a.max_new_tokens) for a in arrivals.requests] == [
        (0, 4808, 10),
        (52000, 3180, 8),
    ]
    one, two = (view(spec.tokens) for spec in arrivals.specs())
    assert one[0] != two[0]
    path.write_text(head + "2023-11-16 18:17:03.9,48,ten\r\nnoon,5,5\r\n")
    with pytest.raises(WireError, match=r"row 1: GeneratedTokens='ten'.*\n.*row 2: TIMESTAMP='noon'"):
        load(path, Source.AZURE)
    path.write_text("a,b\r\n1,2\r\n")
    with pytest.raises(WireError, match="no column TIMESTAMP"):
        load(path, Source.AZURE)


def test_shorter_prompts_keep_the_tree(tmp_path: Path) -> None:
    """Ids stand for fewer tokens: lengths follow, and what is shared stays shared."""
    rows = [row(0, 1536, 4, [1, 2, 3]), row(1, 1025, 4, [1, 2, 9])]
    arrivals, _ = load(mooncake(tmp_path / "t.jsonl", rows), Source.MOONCAKE)
    short = scaled(arrivals, 16)
    assert [arrival.prompt_tokens for arrival in short.requests] == [48, 33]
    one, two = (view(spec.tokens).tolist() for spec in short.specs())
    assert one[:32] == two[:32]
    path = tmp_path / "arrivals.jsonl"
    write(path, short)
    assert read(path) == short
    path.write_text("{}\n")
    with pytest.raises(WireError, match="not a file of arrivals"):
        read(path)


def longest_known_prefix(arrivals: Arrivals) -> float:
    """The upper bound of what a prefix cache can find: tokens of blocks that were seen before, over all tokens."""
    seen: set[int] = set()
    found = 0
    for arrival in arrivals.requests:
        known = next((n for n, block in enumerate(arrival.hash_ids) if block not in seen), len(arrival.hash_ids))
        found += min(known * arrivals.block_tokens, arrival.prompt_tokens)
        seen.update(arrival.hash_ids)
    return found / arrivals.prompt_tokens


def conversations(path: Path, rows: int) -> Arrivals:
    """Ten conversations that grow by two blocks a turn, one request every 40 ms."""
    trees: list[list[int]] = [[0, 1000 * n] for n in range(1, 11)]
    made = []
    for n in range(rows):
        ids = trees[n % 10]
        ids += [ids[-1] + 1, ids[-1] + 2]
        made.append(row(40 * n, 512 * len(ids), 20, list(ids)))
    arrivals, _ = load(mooncake(path, made), Source.MOONCAKE)
    return scaled(arrivals, 16)


def test_the_hit_rate_is_that_of_the_tree(tmp_path: Path) -> None:
    """On the stamp model, which checks what is read: with a pool in which all stays, within a point of the bound."""
    arrivals = conversations(tmp_path / "t.jsonl", 60)
    path = tmp_path / "run.rounds"
    outcome = played(path, arrivals, device=Device.STAMP)
    numbers = numbers_of(Recording(path))
    assert numbers.finished == 60
    assert numbers.rounds == outcome.rounds
    assert abs(numbers.hit_rate - longest_known_prefix(arrivals)) < 0.01
    small = tmp_path / "small.rounds"
    played(small, arrivals, "device_blocks=40")
    assert numbers_of(Recording(small)).hit_rate < numbers.hit_rate


def test_the_commands(tmp_path: Path) -> None:
    """import and run, from a file to numbers; what is wrong ends with exit code 2 and its row."""
    source = mooncake(tmp_path / "t.jsonl", [row(n, 600, 4, [1, 2]) for n in range(5)])
    arrivals, recording = tmp_path / "arrivals.jsonl", tmp_path / "run.rounds"
    cli = CliRunner()
    said = cli.invoke(app, ["trace", "import", str(source), str(arrivals), "--rows", "4", "--block-tokens", "16"])
    assert "4 requests with 76 prompt tokens in 0.0 s" in said.stdout
    said = cli.invoke(app, ["trace", "run", str(arrivals), str(recording), "--set", "max_batch_size=2"])
    assert said.exit_code == 0, said.stderr
    assert "finished" in said.stdout
    assert Recording(recording).header.config.max_batch_size == 2
    said = cli.invoke(app, ["trace", "run", str(arrivals), str(recording), "--set", "batch=2"])
    assert said.exit_code == 2
    assert "'batch=2' must be name=value with one of prefix_granularity" in said.stderr
    said = cli.invoke(app, ["trace", "run", str(arrivals), str(recording), "--cost", "b200"])
    assert "h100-llama-8b" in said.stderr
    source.write_text("hello\n")
    said = cli.invoke(app, ["trace", "import", str(source), str(arrivals)])
    assert said.exit_code == 2
    assert "row 1: not JSON" in said.stderr


def test_what_cannot_be_served_is_named(tmp_path: Path) -> None:
    """A request that the configuration refuses is left out of the run and told; the others are served."""
    requests = in_order([Arrival(0, "long", 900, 4), Arrival(5, "short", 20, 4)])
    path = tmp_path / "run.rounds"
    outcome = played(path, Arrivals(requests, 16), "device_blocks=10")
    assert outcome.unserved == ["long"]
    assert numbers_of(Recording(path)).finished == 1
