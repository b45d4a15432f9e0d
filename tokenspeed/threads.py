"""Work that takes long, away from the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns, from a thread that is gone afterwards.

    The event loop's own threads belong to the program around us, and would stay.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenspeed") as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
