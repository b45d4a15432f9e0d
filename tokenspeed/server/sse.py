"""Server-sent events over one HTTP response."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
_encoder = msgspec.json.Encoder()


class EventStream:
    """A response that is sent as data frames.

    `send` waits while the client's buffers are full: a slow reader slows its own handler and nothing else. It raises
    ConnectionError when the client has gone.
    """

    def __init__(
        self, request: web.Request, keep_alive_seconds: float | None = None, *, names_events: bool = False
    ) -> None:
        """`names_events`: each frame is an event named by its `type`, and the last one needs no mark behind it."""
        self._request = request
        self._names_events = names_events
        self._keep_alive_seconds = keep_alive_seconds
        self._commenting: asyncio.Task[None] | None = None
        self._frames = 0
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )

    async def open(self) -> None:
        """Send the headers; from now on silence is filled with comments, if that was asked for."""
        await self.response.prepare(self._request)
        if self._keep_alive_seconds is not None:
            self._commenting = asyncio.create_task(self._comment(self._keep_alive_seconds))

    async def send(self, frame: Struct) -> None:
        """Send one data frame."""
        self._frames += 1
        if self._names_events:
            await self.response.write(_event(frame))
        else:
            await self.response.write(b"data: %b\n\n" % _encoder.encode(frame))

    async def finish(self) -> None:
        """The last frame, and the end of the body."""
        await self.aclose()
        if not self._names_events:
            await self.response.write(DONE)
        await self.response.write_eof()

    async def fail(self, frame: Struct, *, is_orderly: bool) -> None:
        """An answer that breaks off: the frame says why.

        Where the server itself decided on it (it drains, the time was up) the stream then ends in order. After a fault
        the body never gets its proper end, so that nobody takes it for a complete one who does not read the frame.
        """
        await self.send(frame)
        if is_orderly:
            await self.finish()
        elif self._request.transport is not None:
            self._request.transport.close()

    async def aclose(self) -> None:
        """No more comments. May be called again."""
        if self._commenting is not None:
            self._commenting.cancel()
            await asyncio.wait((self._commenting,))
            self._commenting = None

    async def _comment(self, seconds: float) -> None:
        """A comment whenever no frame was sent for so long. A client that has gone ends the handler, not this."""
        with suppress(ConnectionError):
            while True:
                frames = self._frames
                await asyncio.sleep(seconds)
                if frames == self._frames:
                    await self.response.write(KEEP_ALIVE)


def _event(frame: Struct) -> bytes:
    """A frame under its name: that of its type, or `error` for one that has none."""
    name = getattr(frame, "type", "error")
    content = msgspec.to_builtins(frame)
    content.update(content.pop("fields", {}))
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encoder.encode(content))
