"""One rule for settings: options before the environment before the file before the defaults (I1, I5)."""

from pathlib import Path
from typing import Any

import pytest

from control_plane.errors import ConfigError
from tokenspeed.config import CONTRADICTIONS, EngineConfig
from tokenspeed.fields import described
from tokenspeed.settings import load_settings, variable_of
from tokenspeed.written import bytes_of


def refused(options: dict[str, Any], environment: dict[str, str], file: Path | None = None) -> list[str]:
    """What is said of settings that cannot be."""
    with pytest.raises(ConfigError) as caught:
        load_settings(options, environment=environment, file=file, option_name=lambda field: f"--{field}")
    return list(caught.value.problems)


@pytest.mark.parametrize("places", range(8))
def test_the_first_place_that_says_something_counts(places: int, tmp_path: Path) -> None:
    """Every combination of the three places, for a number, a text, a switch, a list and a size."""
    said = {
        "port": (1, "2", 3),
        "host": ("a", "b", "c"),
        "mixed": (False, "false", False),
        "model_names": (["x", "y"], "y,z", ["z"]),
        "memory_bytes": ("1G", "2G", "3G"),
    }
    file = tmp_path / "engine.toml"
    lines = {"port": "3", "host": '"c"', "mixed": "false", "model_names": '["z"]', "memory_bytes": '"3G"'}
    file.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    options = {name: values[0] for name, values in said.items()} if places & 4 else {}
    environment = {variable_of(name): str(values[1]) for name, values in said.items()} if places & 2 else {}
    config = load_settings(options, environment=environment, file=file if places & 1 else None)
    if not places:
        assert config == EngineConfig()
        return
    index = 0 if places & 4 else 1 if places & 2 else 2
    assert (config.port, config.host, config.mixed) == (index + 1, "abc"[index], False)
    assert config.model_names == (("x", "y"), ("y", "z"), ("z",))[index]
    assert config.memory_bytes == (index + 1) * 2**30


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """And an option's file goes before it, as everywhere."""
    for name, port in (("one.toml", 1), ("two.toml", 2)):
        (tmp_path / name).write_text(f"port = {port}")
    environment = {"TOKENSPEED_CONFIG": str(tmp_path / "one.toml")}
    assert load_settings({}, environment=environment).port == 1
    assert load_settings({}, environment=environment, file=tmp_path / "two.toml").port == 2


def test_every_problem_of_every_place_is_said_with_its_place(tmp_path: Path) -> None:
    """Also of a value that another place overrides, and of what contradicts itself elsewhere."""
    file = tmp_path / "engine.toml"
    file.write_text('max_schedueld_tokens = 8\nport = "x"\nmemory_bytes = "much"\ndevice_blocks = 5\n[server]\n')
    environment = {"TOKENSPEED_PORT": "70000", "TOKENSPEED_MAX_BATCH_SISE": "3", "TOKENSPEED_MIXED": "perhaps"}
    options = {"threads": "1.5", "port": "80", "host_memory_bytes": "1G", "prefix_cache": False, "dtype": "fp8"}
    problems = refused(options, environment, file)
    assert problems == [
        f"'max_schedueld_tokens' is not an option: did you mean 'max_scheduled_tokens'? (in {file})",
        next(problem for problem in problems if problem.startswith("'server' is not an option")),
        "the environment variable TOKENSPEED_MAX_BATCH_SISE is not an option: did you mean TOKENSPEED_MAX_BATCH_SIZE?",
        f"port='x' must be a whole number between 0 and 65535 (in {file})",
        f"memory_bytes='much' must be a size such as 512M or 4G (in {file})",
        "mixed='perhaps' must be true or false (from TOKENSPEED_MIXED)",
        "port=70000 must be a whole number between 0 and 65535 (from TOKENSPEED_PORT)",
        "threads=1.5 must be a whole number between 1 and 2147483647, or null (from --threads)",
        "dtype='fp8' must be one of 'auto', 'bfloat16', 'float16', 'float32' (from --dtype)",
        "host_memory_bytes=1073741824 keeps cached pages, but prefix_cache=False caches none: switch prefix_cache on "
        "or leave host_memory_bytes out",
    ]


def test_files_that_cannot_be_read_are_one_of_the_problems(tmp_path: Path) -> None:
    """The others are said as well."""
    for name, content, said in (("a.toml", "port = ", "is not TOML"), ("a.json", "[1]", "is not a JSON object")):
        (tmp_path / name).write_text(content)
        first, second = refused({"port": "-1"}, {}, tmp_path / name)
        assert said in first
        assert second.startswith("port=-1 must be")
    (tmp_path / "latin.toml").write_bytes(b'host = "\xe9"')
    assert "is not TOML" in refused({}, {}, tmp_path / "latin.toml")[0]
    assert "cannot be read" in refused({}, {}, tmp_path / "missing.toml")[0]


def test_variables_of_others_are_left_alone() -> None:
    """An orchestrator that runs a service of this name sets such; a port that is none is said to be none."""
    theirs = {"TOKENSPEED_SERVICE_HOST": "10.0.0.1", "TOKENSPEED_PORT_8000_TCP": "x", "TOKENSPEED_CACHE": "x"}
    assert load_settings({}, environment=theirs) == EngineConfig()
    (problem,) = refused({}, {"TOKENSPEED_PORT": "tcp://10.0.0.1:8000"})
    assert problem.startswith("port='tcp://10.0.0.1:8000' must be a whole number")


def test_what_has_no_value_is_none() -> None:
    """An option or variable takes back what a file or a default says."""
    assert load_settings({"max_overtakes": "none"}, environment={}).max_overtakes is None
    assert load_settings({}, environment={"TOKENSPEED_MAX_OVERTAKES": "None"}).max_overtakes is None
    assert load_settings({}, environment={"TOKENSPEED_DRAIN_SECONDS": "1.5"}).drain_seconds == 1.5


@pytest.mark.parametrize(
    ("text", "size"), [("512M", 512 * 2**20), ("4G", 4 * 2**30), ("1.5GiB", 3 * 2**29), ("2kB", 2048), ("77", 77)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    """Powers of two, whatever the spelling."""
    assert bytes_of(text) == size


def test_contradictions_are_told_where_the_fields_work() -> None:
    """One that cannot be judged, because a field of it is out of range, does not hide the others."""
    config = EngineConfig(max_batch_size=-1, memory_bytes=1, device_blocks=1, tls_key="k")
    first, *others = config.problems()
    assert first.startswith("max_batch_size=-1 must be")
    assert [problem[:15] for problem in others] == ["memory_bytes=1 ", "tls_certificate"]
    assert all(set(fields) <= set(EngineConfig.__struct_fields__) for fields, _ in CONTRADICTIONS)


@pytest.mark.parametrize("name", EngineConfig.__struct_fields__)
def test_every_field_says_what_it_means(name: str) -> None:
    """In one sentence, which help and reference show."""
    assert described(EngineConfig, name).endswith(".")
    assert EngineConfig.section_of(name)
