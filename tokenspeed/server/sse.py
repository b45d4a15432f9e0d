"""Server-sent events over one HTTP response."""

from collections.abc import Mapping
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

DONE: Final = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


class EventStream:
    """A response that is sent as data frames.

    `send` waits while the client's buffers are full: a slow reader slows its own handler and nothing else. It raises
    ConnectionError when the client has gone.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str]) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                **headers,
            }
        )

    async def open(self) -> None:
        """Send the headers."""
        await self.response.prepare(self._request)

    async def send(self, frame: Struct) -> None:
        """Send one data frame."""
        await self.response.write(b"data: %b\n\n" % _encoder.encode(frame))

    async def finish(self) -> None:
        """A complete answer: the last frame, and the end of the body."""
        await self.response.write(DONE)
        await self.response.write_eof()

    async def fail(self, frame: Struct) -> None:
        """An answer that breaks off: the frame says why, and the body never gets its proper end.

        So it cannot be taken for a complete one, whether a client reads the frame or not.
        """
        await self.send(frame)
        if self._request.transport is not None:
            self._request.transport.close()
