"""The one thing the loop waits for."""

import asyncio
import contextlib


class Wake:
    """Set from the loop's own thread by `set`, from any other by `set_from_thread`. A set while awake is not lost."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_closed = False

    async def wait(self) -> bool:
        """Wait until something arrived; False: the end."""
        self._loop = asyncio.get_running_loop()
        await self._event.wait()
        self._event.clear()
        return not self.is_closed

    def set(self) -> None:
        """Something arrived."""
        self._event.set()

    def set_from_thread(self) -> None:
        """Something arrived, says another thread. A loop that is gone needs no waking."""
        loop = self._loop
        if loop is None:
            self._event.set()  # nobody waits yet: the first wait will see it
            return
        with contextlib.suppress(RuntimeError):  # closed in the meantime
            loop.call_soon_threadsafe(self._event.set)

    def close(self) -> None:
        """Let the waiter go for good."""
        self.is_closed = True
        self._event.set()
