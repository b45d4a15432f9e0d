"""Opening the port, and closing it so that nobody takes a cut stream for a complete one."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from control_plane.errors import ConfigError
from tokenspeed.config import EngineConfig
from tokenspeed.engine import AsyncEngine
from tokenspeed.server.app import Server
from tokenspeed.server.lifecycle import Lifecycle


class Serving:
    """A running server. `cut` is known when it has ended: answers that did not finish in time."""

    def __init__(self, url: str, lifecycle: Lifecycle) -> None:
        self.url = url
        self.lifecycle = lifecycle
        self.cut = 0


@asynccontextmanager
async def serving(
    engine: AsyncEngine, *, drain_seconds: float = 0.0, hurry: asyncio.Event | None = None
) -> AsyncIterator[Serving]:
    """Serve on the engine's configured host and port; gives the base URL (port 0 takes a free one).

    On the way out new requests are refused with 503 and those under way have `drain_seconds` to finish, less when
    `hurry` is set; then the engine is closed, which ends every open stream with an error frame, and then the
    connections are. Raises OSError when the address cannot be had, ConfigError when the certificate cannot be used.
    """
    tls = tls_of(engine.config)
    server = Server(engine)
    silent = SilentConnections(engine.config.header_timeout_seconds)
    server.app.middlewares.insert(0, silent.heard)
    # Without cancellation aiohttp would let a handler run on until its next write for a client that has gone.
    runner = web.AppRunner(server.app, handler_cancellation=True, access_log=None, keepalive_timeout=75.0)
    try:
        await runner.setup()
        assert runner.server is not None
        listener = await asyncio.get_running_loop().create_server(
            silent.watched(runner.server), engine.config.host, engine.config.port, ssl=tls
        )
        running = Serving(f"http{'s' if tls else ''}://{_authority(listener)}", server.lifecycle)
        try:
            yield running
            running.cut = await running.lifecycle.drain(drain_seconds, hurry)
        finally:
            listener.close()
            silent.close()
            await engine.aclose()
    finally:
        await runner.cleanup()


def tls_of(config: EngineConfig) -> ssl.SSLContext | None:
    """The configured certificate, or None. Raises ConfigError when it cannot be used."""
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except OSError as error:
        raise ConfigError(
            [f"tls_certificate={config.tls_certificate!r} and tls_key={config.tls_key!r} cannot be used: {error}"]
        ) from error
    return context


class SilentConnections:
    """Closes a connection whose first request has not sent its whole header in time.

    Later requests on it are bounded by the keep-alive timeout.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}

    def watched(self, server: web.Server) -> Callable[[], web.RequestHandler]:
        """The protocol factory of a listener."""

        def connect() -> web.RequestHandler:
            protocol = server()
            self.watch(protocol)
            return protocol

        return connect

    def watch(self, protocol: web.RequestHandler) -> None:
        """A connection began."""

        def close() -> None:
            del self._timers[protocol]
            protocol.force_close()

        self._timers[protocol] = asyncio.get_running_loop().call_later(self._seconds, close)

    def close(self) -> None:
        """Watch nobody any more."""
        while self._timers:
            self._timers.popitem()[1].cancel()

    @web.middleware
    async def heard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The middleware that sees the whole header."""
        timer = self._timers.pop(request.protocol, None) if self._timers else None
        if timer is not None:
            timer.cancel()
        return await handler(request)


def _authority(listener: asyncio.Server) -> str:
    host, port = listener.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
