"""Public traces become arrivals: Mooncake (JSON lines) and the Azure LLM inference traces (CSV).

A row that cannot be used is named with its number; nothing is dropped unless that was asked for (J5, J6).
"""

import csv
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from control_plane.errors import WireError
from tokenspeed.trace.arrivals import Arrival, Arrivals, in_order, number_problem, refuse

MOONCAKE_BLOCK_TOKENS = 512
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class Source(StrEnum):
    """The kinds of files that can be imported."""

    MOONCAKE = "mooncake"
    AZURE = "azure"


class _BadRow(ValueError):
    """Why a row cannot be used."""


def load(
    path: Path,
    source: Source,
    *,
    rows: int | None = None,
    skip_bad_rows: bool = False,
    progress: Callable[[float], None] | None = None,
) -> tuple[Arrivals, list[str]]:
    """The first `rows` of a file, and which of them were left out. Raises WireError naming every row that is bad."""
    reader = _mooncake if source is Source.MOONCAKE else _azure
    requests: list[Arrival] = []
    problems: list[str] = []
    for number, read in islice(reader(path), rows):
        try:
            requests.append(read())
        except _BadRow as error:
            problems.append(f"row {number}: {error}")
        if progress is not None:
            progress(number)
    if problems and not skip_bad_rows:
        raise refuse(path, problems)
    if not requests:
        raise WireError(f"{path} has no row that can be used")
    return Arrivals(in_order(requests), MOONCAKE_BLOCK_TOKENS, f"{source} {path.name}"), problems


def _mooncake(path: Path) -> Iterator[tuple[int, Callable[[], Arrival]]]:
    with path.open() as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, lambda line=line, number=number: _mooncake_row(line, number)  # type: ignore[misc]


def _mooncake_row(line: str, number: int) -> Arrival:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise _BadRow(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise _BadRow("not an object")
    timestamp = _number(row, "timestamp", 0)
    prompt_tokens = int(_number(row, "input_length", 1))
    output_tokens = int(_number(row, "output_length", 1))
    ids = row.get("hash_ids")
    if not isinstance(ids, list) or any(isinstance(each, bool) or not isinstance(each, int) for each in ids):
        raise _BadRow(f"hash_ids={ids!r} must be a list of whole numbers")
    blocks = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(ids) != blocks:
        raise _BadRow(f"{len(ids)} hash_ids for input_length={prompt_tokens}, which has {blocks} blocks of 512 tokens")
    return Arrival(round(timestamp * 1000), f"r{number}", prompt_tokens, output_tokens, tuple(ids))


def _azure(path: Path) -> Iterator[tuple[int, Callable[[], Arrival]]]:
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        missing = [column for column in AZURE_COLUMNS if column not in (rows.fieldnames or ())]
        if missing:
            raise WireError(f"{path} has no column {missing[0]}: is it an Azure LLM inference trace?")
        for number, row in enumerate(rows, start=1):
            yield number, lambda row=row, number=number: _azure_row(row, number)  # type: ignore[misc]


def _azure_row(row: dict[str, str], number: int) -> Arrival:
    text = row["TIMESTAMP"] or ""
    moment, _, fraction = text.partition(".")
    try:
        at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
        micros = int((fraction.removesuffix("Z") + "000000")[:6])
    except ValueError as error:
        raise _BadRow(f"TIMESTAMP={text!r} must be a date and a time") from error
    at_us = (at - EPOCH) // timedelta(microseconds=1) + micros
    prompt_tokens = int(_number(_as_numbers(row), "ContextTokens", 1))
    output_tokens = int(_number(_as_numbers(row), "GeneratedTokens", 1))
    return Arrival(at_us, f"r{number}", prompt_tokens, output_tokens)


def _as_numbers(row: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in AZURE_COLUMNS[1:]:
        try:
            values[name] = float(row[name])
        except (TypeError, ValueError):
            values[name] = row[name]
    return values


def _number(row: dict[str, Any], name: str, low: float) -> float:
    problem = number_problem(name, row.get(name), low)
    if problem is not None:
        raise _BadRow(problem)
    return float(row[name])
