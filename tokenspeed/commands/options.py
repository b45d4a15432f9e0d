"""Options of the commands: one for each setting that a command takes, with the words of the setting itself."""

import os
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer
from msgspec import inspect

from tokenspeed.config import EngineConfig
from tokenspeed.fields import described, kinds_of
from tokenspeed.settings import load_settings, variable_of
from tokenspeed.terminal import said

# Options whose name is not simply the field's.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "memory_bytes": ("--memory",),
    "host_memory_bytes": ("--host-memory",),
    "record_part_bytes": ("--record-part",),
    "record_keep_parts": ("--record-keep",),
    "model_names": ("--model-name",),
    "cors_origins": ("--cors-origin",),
    "max_scheduled_tokens": ("--max-scheduled-tokens", "--chunk"),
    "overlap_depth": ("--overlap/--no-overlap",),
}
MODEL_FIELDS: Final = ("model", "dtype", "quantization", "device", "memory_bytes", "max_context_tokens", "threads")
ALL_FIELDS: Final = tuple(EngineConfig.__struct_fields__)

Config = Annotated[
    Path | None,
    typer.Option(help="A TOML (or .json) file of settings. Options go before the environment, that before the file."),
]
Command = TypeVar("Command", bound=Callable[..., Any])


def takes(fields: Iterable[str]) -> Callable[[Command], Command]:
    """Give a command that collects `**options` an option for each of these fields. What is not given is None."""

    def with_options(command: Command) -> Command:
        declared = signature(command)
        kept = [part for part in declared.parameters.values() if part.kind is not part.VAR_KEYWORD]
        hints = {part.name: part.annotation for part in kept}
        for name in fields:
            if name in hints:
                continue
            hints[name] = _option(name)
            kept.append(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]))
        # Typer reads a command's parameters from these two.
        command.__signature__ = declared.replace(parameters=_in_order(kept))  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return with_options


def settings_of(file: Path | None, **options: Any) -> EngineConfig:
    """The settings of a command's options, the environment and the file. Raises ConfigError with every problem."""
    if isinstance(overlap := options.get("overlap_depth"), bool):
        options["overlap_depth"] = int(overlap)
    given = {name: value for name, value in options.items() if value is not None and value != []}
    return load_settings(given, file=file, environment=os.environ, option_name=option_name)


def option_name(field: str) -> str:
    """How a person calls the option of a field."""
    return NAMES.get(field, (f"--{field.replace('_', '-')}",))[0].partition("/")[0]


def progress(line: str) -> None:
    """Say what is being done while a person waits."""
    said.print(line, style="dim", markup=False)


def _option(field: str) -> Any:
    """The option of a field. Numbers are read as text: what is wrong with any of them is said with all the rest."""
    names = NAMES.get(field, (f"--{field.replace('_', '-')}",))
    kind = kinds_of(EngineConfig, field)[0]
    text = f"{described(EngineConfig, field)} [dim]{variable_of(field)}[/dim]"
    panel = EngineConfig.section_of(field)
    is_switch = isinstance(kind, inspect.BoolType)
    if is_switch or "/" in names[0]:
        switch = names if "/" in names[0] else (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
        return Annotated[bool | None, typer.Option(*switch, help=text, rich_help_panel=panel)]
    if isinstance(kind, inspect.VarTupleType):
        return Annotated[list[str] | None, typer.Option(*names, help=text, rich_help_panel=panel)]
    return Annotated[str | None, typer.Option(*names, help=text, metavar=_metavar(field, kind), rich_help_panel=panel)]


def _metavar(field: str, kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return "|".join(map(str, values))
        case inspect.IntType():
            return "SIZE" if field.endswith("_bytes") else "N"
        case inspect.FloatType():
            return "SECONDS" if field.endswith("_seconds") else "NUMBER"
        case _:
            return "TEXT"


def _in_order(parameters: list[Parameter]) -> list[Parameter]:
    """As a signature must have them: those by position first."""
    return sorted(parameters, key=lambda parameter: parameter.kind)
