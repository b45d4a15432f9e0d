"""Opening the port, and closing it so that nobody takes a cut stream for a complete one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tokenspeed.engine import AsyncEngine
from tokenspeed.server.app import make_app


@asynccontextmanager
async def serving(engine: AsyncEngine) -> AsyncIterator[str]:
    """Serve on the engine's configured host and port; gives the base URL (port 0 takes a free one).

    On the way out no connection is accepted any more, then the engine is closed, which ends every open stream with an
    error frame, and then the connections are. Raises OSError when the address cannot be had.
    """
    # Without cancellation aiohttp would let a handler run on until its next write for a client that has gone.
    runner = web.AppRunner(make_app(engine), handler_cancellation=True, access_log=None)
    try:
        await runner.setup()
        site = web.TCPSite(runner, engine.config.host, engine.config.port)
        await site.start()
        try:
            yield f"http://{_authority(runner)}"
        finally:
            await site.stop()
            await engine.aclose()
    finally:
        await runner.cleanup()


def _authority(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
