"""Reading a recording: one frame at a time, in constant memory, up to the end or to the first damage.

A recording is one file, or several parts of it (`run.rounds`, `run.0001.rounds`, ...) that are read in turn.
"""

import re
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from control_plane.config import SchedulerConfig
from control_plane.errors import WireError
from control_plane.messages.wire import SCHEMA_VERSION
from control_plane.rounds.frames import HEAD_BYTES, Frame, FrameKind, is_whole, unpack_head

FAMILY = b"tokenspeed rounds"
FORMAT_VERSION = 2
MAGIC = FAMILY + b" %d\n" % FORMAT_VERSION


class LiveRequest(Struct, frozen=True, array_like=True):
    """A request that was there before a part of a recording begins."""

    key: int
    id: str
    prompt_tokens: int
    max_new_tokens: int | None
    waits: bool  # holds no pages


class TraceHeader(Struct, frozen=True, kw_only=True):
    """What one must know to read a trace: the schema of its bytes, the program, the configuration.

    `part` counts from 0 (it begins with the scheduler's first round and can be replayed). `first_key` is the key of
    the next request that is submitted. `redacted`: tokens were mapped and names hashed.
    """

    schema: int
    program: str
    config: SchedulerConfig
    part: int = 0
    first_key: int = 1
    redacted: bool = False


class Damage(Struct, frozen=True):
    """Where a recording stops being readable. `lost_bytes` of `path` from `offset` on were not read."""

    path: str
    offset: int
    frame_index: int
    after_round: int
    lost_bytes: int
    what: str

    def render(self) -> str:
        """For a person."""
        return (
            f"{self.path}: {self.what} at byte {self.offset} (frame {self.frame_index}): "
            f"{self.lost_bytes} bytes after round {self.after_round} are lost"
        )


class TraceReader:
    """Reads a recording. Raises WireError when the file is not one, or of another version or schema.

    Iterating yields every frame before the first damage, which `damage` then tells; with `strict` it is raised.
    """

    def __init__(self, path: str | Path, *, strict: bool = False) -> None:
        self._path = Path(path)
        self._strict = strict
        self.damage: Damage | None = None
        self.bytes_read = 0
        with self._path.open("rb") as file:
            self.header, _ = _read_header(file, self._path)

    @property
    def total_bytes(self) -> int:
        """Size of all parts, for a progress bar."""
        return sum(path.stat().st_size for path in parts_from(self._path, self.header.part))

    def require_beginning(self) -> None:
        """Raise WireError if the recording does not begin with the scheduler's first round."""
        if self.header.part:
            raise WireError(
                f"{self._path} is part {self.header.part} of a recording and begins in the middle of a run: "
                "only what begins with the first round can be planned again"
            )

    def __iter__(self) -> Iterator[Frame]:
        self.damage, self.bytes_read = None, 0
        last_round = 0
        for path in parts_from(self._path, self.header.part):
            with path.open("rb") as file:
                begin = _read_header(file, path)[1]
                reading = _Reading(file, path, begin, last_round)
                for frame in reading:
                    self.bytes_read += reading.last_bytes
                    yield frame
                last_round = reading.last_round
            if reading.damage is not None:
                self.damage = reading.damage
                if self._strict:
                    raise WireError(self.damage.render())
                return


class _Reading:
    """One pass over the frames of one file."""

    def __init__(self, file: BinaryIO, path: Path, offset: int, last_round: int) -> None:
        self._file = file
        self._path = path
        self._offset = offset
        self._index = 0
        self.last_round = last_round
        self.last_bytes = 0
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[Frame]:
        size = self._path.stat().st_size
        while self._offset < size:
            head_data = self._file.read(HEAD_BYTES)
            if len(head_data) < HEAD_BYTES:
                self._stop("the recording breaks off in the middle of a frame", size)
                return
            head = unpack_head(head_data)
            if head is None:
                self._stop("the head of a frame is damaged", size)
                return
            if head.length > size - self._offset - HEAD_BYTES:
                self._stop("the recording breaks off in the middle of a frame", size)
                return
            payload = self._file.read(head.length)
            if not is_whole(head, payload):
                self._stop("a frame does not match its checksum", size)
                return
            try:
                kind = FrameKind(head.kind)
            except ValueError:
                self._stop(f"a frame is of kind {head.kind}, which this program does not know", size)
                return
            self.last_bytes = HEAD_BYTES + head.length
            if kind is FrameKind.PACK:
                for frame in _unpacked(payload):
                    yield frame
                    self.last_round, self.last_bytes = frame.round, 0
            else:
                yield Frame(kind, payload, head.round, head.time_us)
                self.last_round = head.round
            self._offset += HEAD_BYTES + head.length
            self._index += 1

    def _stop(self, what: str, size: int) -> None:
        self.damage = Damage(
            path=str(self._path),
            offset=self._offset,
            frame_index=self._index,
            after_round=self.last_round,
            lost_bytes=size - self._offset,
            what=what,
        )


def parts_from(path: Path, part: int) -> Iterator[Path]:
    """A file of a recording and the parts after it that are there."""
    yield path
    base = path if not part else path.with_name(re.sub(r"\.\d{4,}(\.[^.]*)?$", r"\1", path.name))
    part += 1
    while (following := part_path(base, part)).exists():
        yield following
        part += 1


def part_path(path: Path, part: int) -> Path:
    """Where a part of a recording lies: `run.rounds`, `run.0001.rounds`, ..."""
    return path.with_name(f"{path.stem}.{part:04d}{path.suffix}") if part else path


def _unpacked(payload: bytes) -> Iterator[Frame]:
    """The frames of a compressed one, whose checksum held."""
    data = BytesIO(zlib.decompress(payload))
    while head_data := data.read(HEAD_BYTES):
        head = unpack_head(head_data)
        assert head is not None, "a frame inside a whole pack is damaged"
        yield Frame(FrameKind(head.kind), data.read(head.length), head.round, head.time_us)


def _read_header(file: BinaryIO, path: Path) -> tuple[TraceHeader, int]:
    """The header of a file and where its frames begin."""
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        if magic.startswith(FAMILY):
            said = magic[len(FAMILY) :].strip().decode(errors="replace")
            version = said if said.isdecimal() else "1"
            raise WireError(f"{path} is a recording of format {version}; this program reads format {FORMAT_VERSION}")
        raise WireError(f"{path} is not a recording of rounds")
    head_data = file.read(HEAD_BYTES)
    head = unpack_head(head_data) if len(head_data) == HEAD_BYTES else None
    payload = file.read(min(head.length, path.stat().st_size)) if head is not None else b""
    if len(head_data) < HEAD_BYTES or (head is not None and len(payload) < head.length):
        raise WireError(f"{path} breaks off in its header")
    if head is None or head.kind != FrameKind.HEADER or not is_whole(head, payload):
        raise WireError(f"{path} has a damaged header")
    try:
        schema = msgspec.msgpack.decode(payload)["schema"]
        if schema != SCHEMA_VERSION:
            raise WireError(f"{path} was recorded with schema {schema}; this program reads {SCHEMA_VERSION}")
        header = msgspec.msgpack.decode(payload, type=TraceHeader)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise WireError(f"{path} has a header that cannot be read: {error}") from error
    return header, len(MAGIC) + HEAD_BYTES + head.length
