"""Options that several commands take, and the configuration that they become."""

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from control_plane.errors import ConfigError
from tokenspeed.config import EngineConfig
from tokenspeed.terminal import said

BYTE_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

Model = Annotated[str | None, typer.Option(help="smollm2, gemma3-270m, stamp, a transformers folder or a GGUF file.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Memory = Annotated[str | None, typer.Option(help="What the cache may take, as in 512M or 4G.")]
HostMemory = Annotated[
    str | None, typer.Option(help="What a second tier of the cache may take in host memory, as in 8G; none by default.")
]
MaxBatchSize = Annotated[int | None, typer.Option(help="Requests that run at once.")]
Chunk = Annotated[int | None, typer.Option("--max-scheduled-tokens", "--chunk", help="Tokens of one round.")]
MaxContext = Annotated[int | None, typer.Option("--max-context-tokens", help="Limit on prompt plus output.")]
Overlap = Annotated[
    bool | None, typer.Option("--overlap/--no-overlap", help="Plan a round while the one before computes.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads of one operation.")]
Record = Annotated[str | None, typer.Option(help="Keep every round in this file.")]
RecordPart = Annotated[str | None, typer.Option(help="Record into parts of this size, as in 64M.")]
RecordKeep = Annotated[int | None, typer.Option(help="Keep only so many parts of the record, the latest.")]
RecordCompress = Annotated[bool | None, typer.Option("--record-compress", help="Compress the record.")]
RecordRedact = Annotated[
    bool | None, typer.Option("--record-redact", help="Record the schedule without what clients wrote.")
]
Config = Annotated[Path | None, typer.Option(help="A JSON file of settings; options given here go before it.")]


def settings_of(file: Path | None, **options: Any) -> EngineConfig:
    """The file's settings under the options that were given. Raises ConfigError with every problem."""
    given = {name: value for name, value in options.items() if value is not None}
    if file is None:
        return EngineConfig.from_mapping(given)
    return EngineConfig.from_file(file, **given)


def bytes_of(text: str | None, option: str = "memory") -> int | None:
    """A size as people write it: 512M, 4G, 4GiB, 1073741824. Raises ConfigError that names the option."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError([f"{option}={text!r} must be a size such as 512M or 4G"])
    return int(float(match[1]) * BYTE_UNITS[match[2].upper()])


def progress(line: str) -> None:
    """Say what is being done while a person waits."""
    said.print(line, style="dim", markup=False)
