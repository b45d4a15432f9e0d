"""Python's cycle collector, kept out of rounds: for a process that is a server and nothing else.

Left to itself it starts wherever the object is made that was one too many, which is in a round more often than not, and
it walks the model's and every module's objects again and again. Here what lives at the start is left out for good, and
a task of the event loop collects what came since: a round never waits, so no collection is ever part of one.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

LOOK_EVERY_SECONDS = 0.25
YOUNG_OBJECTS = 2_000  # containers made since the last collection, fewer of which are left alone
MIDDLE_EVERY, FULL_EVERY = 8, 64  # collections of the young


@asynccontextmanager
async def collecting_between_rounds() -> AsyncIterator[None]:
    """While this lasts, cycles are collected between the callbacks of this event loop and nowhere else.

    It is the whole process that this concerns: an embedding program decides for itself whether it wants it.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    collector = asyncio.create_task(_collect(), name="tokenspeed garbage")
    try:
        yield
    finally:
        collector.cancel()
        with suppress(asyncio.CancelledError):
            await collector
        gc.enable()
        gc.unfreeze()


async def _collect() -> None:
    collections = 0
    while True:
        await asyncio.sleep(LOOK_EVERY_SECONDS)
        if gc.get_count()[0] < YOUNG_OBJECTS:
            continue
        collections += 1
        gc.collect(2 if collections % FULL_EVERY == 0 else 1 if collections % MIDDLE_EVERY == 0 else 0)
