"""Many seeds on all cores."""

import logging
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from tools.simulate.run import Outcome, simulate


def hush_devices() -> None:
    """Injected failures are logged by devices, as all failures are; nobody wants to read them by the thousand."""
    logging.getLogger("tokenspeed.device").setLevel(logging.CRITICAL)


def simulate_many(
    seeds: Iterable[int], *, rounds: int, workers: int, minutes: float | None = None, audits_every: int = 1
) -> Iterator[Outcome]:
    """The outcome of each seed, in the order in which they end. No seed is begun after so many minutes."""
    last_start = None if minutes is None else time.monotonic() + 60 * minutes
    remaining = iter(seeds)
    running: set[Future[Outcome]] = set()
    # A fresh interpreter each: it must not inherit threads that other libraries started.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=hush_devices) as pool:
        while True:
            is_late = last_start is not None and time.monotonic() >= last_start
            while not is_late and len(running) < 2 * workers and (seed := next(remaining, None)) is not None:
                running.add(pool.submit(simulate, seed, rounds=rounds, audits_every=audits_every))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
