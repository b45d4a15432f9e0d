"""The frame of a recording: a head with its own checksum, then a payload with one.

A head tells kind, length, checksums, the round that was planned last and the time, so that a reader can cut, seek and
say where a file is damaged without understanding a payload.
"""

import struct
from enum import IntEnum
from zlib import crc32

from msgspec import Struct

NO_TIME = -1
# kind, payload length, payload check, round, time in microseconds; before them the check of these
_said = struct.Struct("<HIIIq")
_check = struct.Struct("<H")
HEAD_BYTES = _check.size + _said.size


class FrameKind(IntEnum):
    """What a frame holds."""

    HEADER = 0
    SUBMISSIONS = 1
    EVENTS = 2
    PLAN = 3
    LIVE = 4  # the requests that a part of a recording begins with
    PACK = 5  # compressed frames


class Frame(Struct, frozen=True):
    """One thing that went in or came out.

    `round` is the round that was planned last, a plan's own included. `time_us` counts from some fixed moment of the
    recording machine; NO_TIME: nobody looked at a clock.
    """

    kind: FrameKind
    payload: bytes
    round: int = 0
    time_us: int = NO_TIME


class Head(Struct, frozen=True):
    """What a head says. `kind` is a plain number: it may be one that this program does not know."""

    kind: int
    length: int
    check: int
    round: int
    time_us: int


def pack_head(kind: int, payload: bytes, round_number: int, time_us: int) -> bytes:
    """The head of a payload."""
    said = _said.pack(kind, len(payload), crc32(payload), round_number, time_us)
    return _check.pack(crc32(said) & 0xFFFF) + said


def unpack_head(data: bytes) -> Head | None:
    """What these HEAD_BYTES bytes say, or None when they are damaged."""
    said = data[_check.size :]
    if _check.pack(crc32(said) & 0xFFFF) != data[: _check.size]:
        return None
    return Head(*_said.unpack(said))


def is_whole(head: Head, payload: bytes) -> bool:
    """Whether a payload is the one that its head was written for."""
    return len(payload) == head.length and crc32(payload) == head.check
