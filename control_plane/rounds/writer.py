"""Writing a recording: appended frames, in parts of a bounded size if asked for, compressed if asked for."""

import logging
import re
import zlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

import msgspec

from control_plane.config import SchedulerConfig
from control_plane.messages.wire import SCHEMA_VERSION
from control_plane.rounds.frames import NO_TIME, FrameKind, pack_head
from control_plane.rounds.trace import FAMILY, MAGIC, LiveRequest, TraceHeader, part_path

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 18
PACK_BYTES = 1 << 16


class TraceWriter:
    """Appends frames to a file. Bytes reach the operating system when the buffer is full and at every `flush`.

    With `part_bytes` a part that is full is followed by the next one; with `keep_parts` only so many of the latest
    are kept (the first is then lost, and with it the possibility to replay). A disk that is full or gone ends the
    recording with one warning, never the rounds.
    """

    def __init__(
        self,
        path: str | Path,
        config: SchedulerConfig,
        *,
        part_bytes: int | None = None,
        keep_parts: int | None = None,
        compress: bool = False,
        redacted: bool = False,
        part: int = 0,
        first_key: int = 1,
    ) -> None:
        assert keep_parts is None or keep_parts > 0, f"keep_parts={keep_parts} keeps nothing"
        self._path = Path(path)
        self._header = TraceHeader(
            schema=SCHEMA_VERSION,
            program=program_version(),
            config=config,
            part=part,
            first_key=first_key,
            redacted=redacted,
        )
        self._part_bytes = part_bytes
        self._keep_parts = keep_parts
        self._pack: list[bytes] | None = [] if compress else None
        self._pack_bytes = 0
        self._written = 0
        self.failure: str | None = None
        _remove_stale_parts(self._path)
        self._file = self._open(self._path)

    @property
    def is_full(self) -> bool:
        """Whether the next frame should begin a new part."""
        return self._part_bytes is not None and self._written >= self._part_bytes

    def write(self, kind: FrameKind, payload: bytes, *, round_number: int = 0, time_us: int = NO_TIME) -> None:
        """Append one frame."""
        head = pack_head(kind, payload, round_number, time_us)
        if self._pack is not None:
            self._pack += (head, payload)
            self._pack_bytes += len(head) + len(payload)
            if self._pack_bytes >= PACK_BYTES:
                self._put_pack()
        else:
            self._put(head, payload)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._put_pack()
        if self.failure is None:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def next_part(self, live: Sequence[LiveRequest], *, first_key: int, round_number: int) -> None:
        """Go on in a new file, which begins with the requests that are there."""
        self.flush()
        if self.failure is not None:
            return
        part = self._header.part + 1
        self._header = msgspec.structs.replace(self._header, part=part, first_key=first_key)
        try:
            self._file.close()
            self._file = self._open(part_path(self._path, part))
            if self._keep_parts is not None and part >= self._keep_parts:
                part_path(self._path, part - self._keep_parts).unlink(missing_ok=True)
        except OSError as error:
            self._fail(error)
            return
        self.write(FrameKind.LIVE, msgspec.msgpack.encode(live), round_number=round_number)

    def close(self) -> None:
        """Write what is left. The writer is done."""
        self.flush()
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)

    def _open(self, path: Path) -> BinaryIO:
        header = msgspec.msgpack.encode(self._header)
        file = path.open("wb", buffering=BUFFER_BYTES)
        file.write(MAGIC + pack_head(FrameKind.HEADER, header, 0, NO_TIME) + header)
        file.flush()
        self._written = 0
        return file

    def _put(self, head: bytes, payload: bytes) -> None:
        if self.failure is not None:
            return
        try:
            self._file.write(head)
            self._file.write(payload)
        except OSError as error:
            self._fail(error)
        self._written += len(head) + len(payload)

    def _put_pack(self) -> None:
        if self._pack:
            payload = zlib.compress(b"".join(self._pack), 1)
            self._pack, self._pack_bytes = [], 0
            self._put(pack_head(FrameKind.PACK, payload, 0, NO_TIME), payload)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = f"the recording {self._path} ends here: {error.strerror or error}"
            log.warning("%s; the rounds go on", self.failure)


def _remove_stale_parts(path: Path) -> None:
    """Parts of an earlier recording of this name would be read as if they were of this one."""
    for stale in path.parent.iterdir():
        if re.fullmatch(re.escape(path.stem) + r"\.\d{4,}" + re.escape(path.suffix), stale.name):
            with stale.open("rb") as file:
                is_ours = file.read(len(FAMILY)) == FAMILY
            if is_ours:
                stale.unlink()


def program_version() -> str:
    """The installed version of this program, or "unknown" in a bare source tree."""
    try:
        return version("tokenspeed")
    except PackageNotFoundError:
        return "unknown"
