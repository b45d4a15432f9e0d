"""The file of a recording: a header, then length-prefixed frames. A torn last frame is dropped, the rest is read."""

import struct
from collections.abc import Iterator
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from control_plane.config import SchedulerConfig
from control_plane.errors import WireError
from control_plane.messages.wire import SCHEMA_VERSION

MAGIC = b"tokenspeed rounds\n"
_frame_head = struct.Struct("<BI")
_clock = struct.Struct("<q")


class FrameKind(IntEnum):
    """What a frame holds."""

    SUBMISSIONS = 1
    EVENTS = 2
    PLAN = 3
    CLOCK = 4


class TraceHeader(Struct, frozen=True):
    """What one must know to read a trace: the schema of its bytes, the program, the configuration."""

    schema: int
    program: str
    config: SchedulerConfig


class Frame(Struct, frozen=True):
    """One thing that went in or came out."""

    kind: FrameKind
    payload: bytes

    @property
    def time_us(self) -> int:
        """The time of a clock frame, in microseconds since some fixed moment of the recording machine."""
        assert self.kind is FrameKind.CLOCK, f"a {self.kind.name} frame tells no time"
        (time_us,) = _clock.unpack(self.payload)
        assert isinstance(time_us, int)
        return time_us


class TraceWriter:
    """Appends frames to a file. Bytes reach the operating system when the buffer is full and at every `flush`."""

    def __init__(self, path: str | Path, config: SchedulerConfig) -> None:
        self._file: BinaryIO = Path(path).open("wb", buffering=1 << 18)  # noqa: SIM115 - closed by `close`
        header = msgspec.msgpack.encode(TraceHeader(SCHEMA_VERSION, program_version(), config))
        self._file.write(MAGIC + _frame_head.pack(0, len(header)) + header)
        self._file.flush()

    def write(self, kind: FrameKind, payload: bytes) -> None:
        """Append one frame."""
        self._file.write(_frame_head.pack(kind, len(payload)))
        self._file.write(payload)

    def write_clock(self, time_us: int) -> None:
        """Append the time of what follows."""
        self.write(FrameKind.CLOCK, _clock.pack(time_us))

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Write what is left. The writer is done."""
        self._file.close()


class TraceReader:
    """Reads a recording. Raises WireError when the file is not one, or of another schema."""

    def __init__(self, path: str | Path) -> None:
        self._data = Path(path).read_bytes()
        if not self._data.startswith(MAGIC):
            raise WireError(f"{path} is not a recording of rounds")
        self._begin = len(MAGIC)
        head = self._frame_at(self._begin)
        if head is None:
            raise WireError(f"{path} breaks off in its header")
        _, payload, self._begin = head
        try:
            schema = msgspec.msgpack.decode(payload)["schema"]
            if schema != SCHEMA_VERSION:
                raise WireError(f"{path} was recorded with schema {schema}; this program reads {SCHEMA_VERSION}")
            self.header = msgspec.msgpack.decode(payload, type=TraceHeader)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise WireError(f"{path} has a header that cannot be read: {error}") from error

    def __iter__(self) -> Iterator[Frame]:
        position = self._begin
        while (read := self._frame_at(position)) is not None:
            kind, payload, position = read
            yield Frame(FrameKind(kind), payload)

    def _frame_at(self, position: int) -> tuple[int, bytes, int] | None:
        if position + _frame_head.size > len(self._data):
            return None
        kind, length = _frame_head.unpack_from(self._data, position)
        begin = position + _frame_head.size
        if begin + length > len(self._data):
            return None
        return kind, self._data[begin : begin + length], begin + length


def program_version() -> str:
    """The installed version of this program, or "unknown" in a bare source tree."""
    try:
        return version("tokenspeed")
    except PackageNotFoundError:
        return "unknown"
