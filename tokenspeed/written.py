"""Settings as people write them: files of them, sizes, lists, and numbers that are texts."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, inspect

from control_plane.errors import ConfigError
from tokenspeed.fields import annotations, kinds_of

BYTE_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read_file(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file, or in a JSON file if its name ends so. Raises ConfigError."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([f"the file {str(path)!r} cannot be read: {error.strerror}"]) from error
    try:
        if str(path).endswith(".json"):
            return msgspec.json.decode(data, type=dict[str, Any])
        return tomllib.loads(data.decode())
    except msgspec.MsgspecError as error:
        raise ConfigError([f"the file {str(path)!r} is not a JSON object: {error}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"the file {str(path)!r} is not TOML: {error}"]) from error


def from_file(name: str, value: Any) -> Any:
    """What a file says of a field; a size may be a text. What is not of the field's kind stays as it is."""
    if isinstance(value, list):
        return tuple(value)
    size = bytes_of(value) if is_size(name) and isinstance(value, str) else None
    return value if size is None else size


def from_text(struct: type[Struct], name: str, text: str) -> Any:
    """What a text says of a field: 8000, true, none, 4G, a,b. What is not of the field's kind stays as it is."""
    kinds = kinds_of(struct, name)
    if any(isinstance(kind, inspect.NoneType) for kind in kinds) and text.lower() == "none":
        return None
    if is_size(name) and (size := bytes_of(text)) is not None:
        return size
    if any(isinstance(kind, inspect.VarTupleType) for kind in kinds):
        return tuple(part.strip() for part in text.split(","))
    if any(isinstance(kind, inspect.StrType | inspect.LiteralType) for kind in kinds):
        return text
    try:
        return msgspec.convert(text, annotations(struct)[name], strict=False)
    except msgspec.ValidationError:
        return _number(text)


def is_size(name: str) -> bool:
    """Whether a field holds bytes, which people write as 4G."""
    return name.endswith("_bytes")


def bytes_of(text: str) -> int | None:
    """A size as people write it: 512M, 4G, 4GiB, 1073741824. None: it is no size."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    return None if match is None else int(float(match[1]) * BYTE_UNITS[match[2].upper()])


def _number(text: str) -> int | float | str:
    """A number out of range is shown as one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
