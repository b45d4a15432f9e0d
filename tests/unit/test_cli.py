"""The command line, in one process and without a port."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from control_plane.messages.columns import pack, view
from control_plane.messages.wire import decode_specs, encode_specs
from control_plane.rounds.frames import FrameKind, pack_head
from control_plane.rounds.trace import TraceReader
from tokenspeed.cli import app
from tokenspeed.commands.options import option_name, settings_of
from tokenspeed.commands.serve import example_request
from tokenspeed.config import EngineConfig
from tokenspeed.settings import variable_of

STAMP = ["--model", "stamp", "--max-context-tokens", "512"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_misspelt_option_is_an_error_with_the_right_one() -> None:
    """I5: not ignored, and not guessed either."""
    result = run("serve", "--max-schedueld-tokens", "8")
    assert result.exit_code == 2
    assert "--max-schedueld-tokens" in result.output
    assert "--max-scheduled-tokens" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "no"], "port='no' must be a whole number between 0 and 65535 (from --port)"),
        (["--port", "99999"], "port=99999 must be a whole number between 0 and 65535"),
        (["--max-batch-size", "0"], "max_batch_size=0"),
        (["--memory", "lots"], "memory_bytes='lots' must be a size such as 512M or 4G (from --memory)"),
        (["--dtype", "fp8"], "dtype='fp8' must be one of"),
        (["--config", "/no/such/file"], "cannot be read"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_value_ends_the_command_with_its_name(arguments: list[str], said: str) -> None:
    """I1: exit code 2 and a line that says what to change; no traceback."""
    result = run("serve", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_everything_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: options, environment and file in one answer, each with its place."""
    file = tmp_path / "engine.toml"
    file.write_text('porrt = 1\nmixed = "no"\n')
    monkeypatch.setenv("TOKENSPEED_MAX_BATCH_SIZE", "many")
    result = run("serve", "--port", "-1", "--memory", "lots", "--threads", "0", "--config", str(file))
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    for part in (
        "'porrt' is not",
        "mixed='no'",
        "max_batch_size='many'",
        "port=-1",
        "memory_bytes='lots'",
        "threads=0",
    ):
        assert part in said


def test_options_go_before_the_file(tmp_path: Path) -> None:
    """A file holds what is always the same, the command line what is not."""
    file = tmp_path / "engine.json"
    file.write_text(json.dumps({"model": "stamp", "port": 1, "host": "::1"}))
    config = settings_of(file, port=2, host=None)
    assert (config.model, config.port, config.host) == ("stamp", 2, "::1")


def test_every_setting_is_an_option_of_serve() -> None:
    """With the setting's own words, and a switch can be turned off again."""
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for field in EngineConfig.__struct_fields__:
        assert option_name(field) in result.output
        assert variable_of(field) in result.output
    for switch in ("--no-mixed", "--no-overlap", "--no-prefix-cache", "--no-check-order"):
        assert switch in result.output


def test_the_example_can_be_pasted() -> None:
    """A shell reads it as one curl command with a JSON body."""
    for is_chat, path in ((True, "chat/completions"), (False, "completions")):
        command = example_request("http://127.0.0.1:8000", is_chat=is_chat)
        script = "curl() { printf '%s\\n' \"$@\"; }\n" + command
        words = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()
        assert words[:2] == ["-N", f"http://127.0.0.1:8000/v1/{path}"]
        assert json.loads(words[-1])["stream"] is True


def test_generate_prints_the_answer_alone() -> None:
    """The text goes to standard output, everything else does not."""
    result = run("generate", "hello", *STAMP, "--max-tokens", "4")
    assert result.exit_code == 0
    assert len(result.stdout.split()) == 4
    assert run("generate", "hello", *STAMP, "--max-tokens", "4").stdout == result.stdout
    assert run("generate", "hello", *STAMP, "--max-tokens", "4", "--no-chat").stdout != result.stdout


def test_generate_refuses_what_cannot_be() -> None:
    """The same words as everywhere."""
    result = run("generate", "", *STAMP, "--no-chat")
    assert result.exit_code == 2
    assert "prompt is empty" in result.stderr


def test_a_recording_is_replayed(tmp_path: Path) -> None:
    """Exit code 0 when every plan is the same, 1 with the difference when one is not, 2 when it is no recording."""
    file = tmp_path / "run.rounds"
    assert run("generate", "hello", *STAMP, "--max-tokens", "4", "--record", str(file)).exit_code == 0
    result = run("trace", "replay", str(file))
    assert result.exit_code == 0
    assert "all are identical" in result.stdout

    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    result = run("trace", "replay", str(file))
    assert result.exit_code == 0
    assert "are lost" in result.stderr
    assert "all are identical" in result.stdout
    assert run("trace", "replay", "--strict", str(file)).exit_code == 2
    assert "1 | prefill" in run("trace", "show", str(file)).stdout
    file.write_bytes(whole)

    file.write_bytes(with_longer_prompt(file))
    result = run("trace", "replay", str(file))
    assert result.exit_code == 1
    assert "round 1 (plan 0 of the recording) differs:" in result.stdout
    assert "forward.input_lengths" in result.stdout
    assert "recorded: [" in result.stdout
    assert "replayed: [" in result.stdout

    file.write_text("something else")
    result = run("trace", "replay", str(file))
    assert result.exit_code == 2
    assert "is not a recording" in result.stderr


def with_longer_prompt(file: Path) -> bytes:
    """The recording with one token more in its first submission, as if another program had planned it."""

    data = file.read_bytes()
    frame = next(frame for frame in TraceReader(file) if frame.kind is FrameKind.SUBMISSIONS)
    (spec,) = decode_specs(frame.payload)
    longer = encode_specs([structs.replace(spec, tokens=pack([*view(spec.tokens).tolist(), 5]))])
    old, new = (
        pack_head(frame.kind, payload, frame.round, frame.time_us) + payload for payload in (frame.payload, longer)
    )
    assert data.count(old) == 1
    return data.replace(old, new)


def test_the_package_runs_as_a_module_and_loads_no_torch() -> None:
    """`python -m tokenspeed` is the same command; asking for help, or importing the door, costs no torch."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tokenspeed", "--help"]
    assert subprocess.run(command, capture_output=True, check=True, cwd=root).stdout
    code = "import sys, tokenspeed, tokenspeed.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=root).returncode == 0
