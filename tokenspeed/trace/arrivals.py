"""Arrivals: when which request comes, how long its prompt is and what of it others share.

A file of them is JSON lines: a heading, then one request a line, in the order of time and row. Times are microseconds
from the first arrival. Prompts are given by ids of blocks: equal ids stand for equal tokens, wherever they occur.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from control_plane.errors import WireError
from control_plane.messages import RequestSpec
from control_plane.messages.columns import pack

FAMILY = "tokenspeed arrivals"
VERSION = 1
LAST_TOKEN = 31_999
PROBLEMS_SHOWN = 20

Words = np.ndarray[Any, np.dtype[np.uint64]]


class Arrival(Struct, frozen=True, omit_defaults=True):
    """One request. `hash_ids` name the blocks of its prompt, the last, partial one included; none: nothing is shared.

    `tokens` is the prompt itself, where it is known (from a recording); `output` what was generated, and `leaves_us`
    how long after its arrival the client gave up.
    """

    at_us: int
    id: str
    prompt_tokens: int
    max_new_tokens: int | None
    hash_ids: tuple[int, ...] = ()
    tokens: bytes = b""
    output: bytes = b""
    leaves_us: int | None = None
    namespace: str = ""


class Heading(Struct, frozen=True):
    """The first line of a file of arrivals. `block_tokens` is the span of one id."""

    family: str
    version: int
    source: str
    block_tokens: int


class Arrivals(Struct, frozen=True):
    """Requests in the order in which they come."""

    requests: tuple[Arrival, ...]
    block_tokens: int
    source: str = ""

    def specs(self) -> Iterator[RequestSpec]:
        """Each as it is submitted. Generation ends at its length alone."""
        for index, arrival in enumerate(self.requests):
            yield RequestSpec(
                arrival.id,
                arrival.tokens or prompt_of(arrival, self.block_tokens, index),
                arrival.max_new_tokens,
                namespace=arrival.namespace,
            )

    @property
    def prompt_tokens(self) -> int:
        """Of all of them."""
        return sum(arrival.prompt_tokens for arrival in self.requests)


def prompt_of(arrival: Arrival, block_tokens: int, index: int) -> bytes:
    """The tokens of a prompt: a fixed function of block id and offset, or of the request's place in the file."""
    ids = np.array(arrival.hash_ids or [-1 - index], dtype=np.int64).view(np.uint64)
    span = block_tokens if arrival.hash_ids else arrival.prompt_tokens
    with np.errstate(over="ignore"):
        offsets = np.arange(1, span + 1).astype(np.uint64)
        words: Words = (ids[:, None] * np.uint64(0x9E3779B97F4A7C15) + offsets).astype(np.uint64)
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
    return pack((words % np.uint64(LAST_TOKEN) + np.uint64(1)).reshape(-1)[: arrival.prompt_tokens].astype(np.int32))


def in_order(rows: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """By time, then by row; the first comes at 0."""
    ordered = sorted(rows, key=lambda arrival: arrival.at_us)
    first = ordered[0].at_us if ordered else 0
    return tuple(msgspec.structs.replace(arrival, at_us=arrival.at_us - first) for arrival in ordered)


def faster(arrivals: Arrivals, speed: float) -> Arrivals:
    """The same requests, `speed` times as dense. Raises WireError for a speed that is no positive number (J5)."""
    if not (math.isfinite(speed) and speed > 0):
        raise WireError(f"speed={speed} must be a positive number")
    requests = tuple(
        msgspec.structs.replace(arrival, at_us=round(arrival.at_us / speed)) for arrival in arrivals.requests
    )
    return msgspec.structs.replace(arrivals, requests=requests)


def scaled(arrivals: Arrivals, block_tokens: int) -> Arrivals:
    """Shorter prompts that share as before: every id stands for `block_tokens` tokens. Outputs stay."""
    if not 1 <= block_tokens <= arrivals.block_tokens:
        raise WireError(f"block_tokens={block_tokens} must be between 1 and {arrivals.block_tokens}")
    before = arrivals.block_tokens

    def shorter(arrival: Arrival) -> Arrival:
        last = arrival.prompt_tokens % before or before
        whole = -(-arrival.prompt_tokens // before) - 1
        tokens = whole * block_tokens + -(-last * block_tokens // before)
        return msgspec.structs.replace(arrival, prompt_tokens=tokens)

    return Arrivals(tuple(map(shorter, arrivals.requests)), block_tokens, arrivals.source)


def write(path: Path, arrivals: Arrivals, progress: Callable[[float], None] | None = None) -> None:
    """Write a file of arrivals."""
    encoder = msgspec.json.Encoder()
    heading = Heading(FAMILY, VERSION, arrivals.source, arrivals.block_tokens)
    with path.open("wb") as file:
        file.write(encoder.encode(heading) + b"\n")
        for index, arrival in enumerate(arrivals.requests):
            file.write(encoder.encode(arrival) + b"\n")
            if progress is not None:
                progress(index)


def read(path: Path) -> Arrivals:
    """Read what `write` wrote. Raises WireError naming the line that is wrong."""
    with path.open("rb") as file:
        try:
            heading = msgspec.json.decode(file.readline(), type=Heading)
        except msgspec.MsgspecError as error:
            raise WireError(f"{path} is not a file of arrivals: {error}") from error
        if heading.family != FAMILY:
            raise WireError(f"{path} is not a file of arrivals")
        if heading.version != VERSION:
            raise WireError(f"{path} is of version {heading.version}; this program reads {VERSION}")
        decoder = msgspec.json.Decoder(Arrival)
        requests = []
        for number, line in enumerate(file, start=2):
            try:
                requests.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise WireError(f"{path}, line {number}: {error}") from error
    return Arrivals(tuple(requests), heading.block_tokens, heading.source)


def refuse(path: Path, problems: Sequence[str]) -> WireError:
    """What is wrong with the rows of a file."""
    shown = "\n  ".join(problems[:PROBLEMS_SHOWN])
    more = f"\n  and {len(problems) - PROBLEMS_SHOWN} more" if len(problems) > PROBLEMS_SHOWN else ""
    return WireError(f"{path}: {len(problems)} rows cannot be used (--skip-bad-rows leaves them out):\n  {shown}{more}")


def number_problem(name: str, value: Any, low: float) -> str | None:
    """Why a value cannot be used as a number of at least `low`; None: it can."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"{name}={value!r} must be a number"
    return f"{name}={value} must be at least {low:g}" if value < low else None
