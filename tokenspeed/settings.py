"""Where settings come from, and which one counts: options, then the environment, then the file, then the defaults.

Whatever is wrong in any of them is said at once, with the place that it came from.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from control_plane.errors import ConfigError
from tokenspeed.config import EngineConfig
from tokenspeed.fields import problem_of, unknown_name_problems
from tokenspeed.written import from_file, from_text, is_size, read_file

ENVIRONMENT_PREFIX: Final = "TOKENSPEED_"
CONFIG_VARIABLE: Final = "TOKENSPEED_CONFIG"

Place = Callable[[str], str]


def load_settings(
    options: Mapping[str, Any],
    *,
    file: str | Path | None = None,
    environment: Mapping[str, str],
    option_name: Callable[[str], str] = str,
) -> EngineConfig:
    """The valid configuration of these `options` (by field; texts as people write them), the environment and a file.

    `option_name` says how a person calls the option of a field. Without `file` the one that TOKENSPEED_CONFIG names is
    read. Raises ConfigError with every problem of every place, whether or not another place overrides it.
    """
    problems: list[str] = []
    layers: list[tuple[Place, dict[str, Any]]] = []
    path = file if file is not None else environment.get(CONFIG_VARIABLE)
    if path is not None:
        try:
            in_file = read_file(path)
        except ConfigError as error:
            problems += error.problems
        else:
            unknown = unknown_name_problems(in_file, EngineConfig.__struct_fields__)
            problems += [f"{problem} (in {path})" for problem in unknown]
            known = {name: value for name, value in in_file.items() if name in EngineConfig.__struct_fields__}
            layers.append((lambda _: f"in {path}", {name: from_file(name, value) for name, value in known.items()}))
    problems += _misspelt(environment)
    variables = {name: environment[variable_of(name)] for name in _fields() if variable_of(name) in environment}
    layers.append((lambda name: f"from {variable_of(name)}", _read(variables)))
    layers.append((lambda name: f"from {option_name(name)}", _read(options)))
    merged: dict[str, Any] = {}
    refused: set[str] = set()
    for place, values in layers:
        for name, value in values.items():
            problem = _size_problem(name, value) or problem_of(EngineConfig, name, value)
            if problem is None:
                merged[name] = value
            else:
                problems.append(f"{problem} ({place(name)})")
                refused.add(name)
    config = EngineConfig(**merged)
    problems += config.problems(apart_from=refused)
    if problems:
        raise ConfigError(problems)
    return config


def variable_of(name: str) -> str:
    """The environment variable of a field."""
    return ENVIRONMENT_PREFIX + name.upper()


def _fields() -> tuple[str, ...]:
    return EngineConfig.__struct_fields__


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: from_text(EngineConfig, name, value) if isinstance(value, str) else from_file(name, value)
        for name, value in values.items()
    }


def _size_problem(name: str, value: Any) -> str | None:
    if is_size(name) and isinstance(value, str):
        return f"{name}={value!r} must be a size such as 512M or 4G"
    return None


def _misspelt(environment: Mapping[str, str]) -> list[str]:
    """Variables that look like a field's misspelt name. Others are somebody else's: orchestrators name services so."""
    known = [CONFIG_VARIABLE, *map(variable_of, _fields())]
    problems = []
    for name in sorted(environment.keys() - set(known)):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.93) if name.startswith(ENVIRONMENT_PREFIX) else []
        if near:
            problems.append(f"the environment variable {name} is not an option: did you mean {near[0]}?")
    return problems
