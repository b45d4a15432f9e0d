"""One seed compared, and many of them."""

import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from msgspec import Struct

from tools.compare_reference.draw import Setting, draw_setting
from tools.compare_reference.program import Difference, Program
from tools.compare_reference.their_rules import reference_rules


class Outcome(Struct, frozen=True):
    """What became of one program. `error` is what a side raised, `history` the rounds in words, oldest first."""

    setting: Setting
    rounds: int
    retractions: int
    stored_blocks: int
    loaded_blocks: int
    difference: Difference | None
    error: str | None
    history: tuple[str, ...]

    @property
    def is_explained(self) -> bool:
        """Whether nothing differs, or only what a row tells."""
        return self.error is None and (self.difference is None or self.difference.row is not None)

    @property
    def kind(self) -> str:
        """What differs, in few words."""
        if self.error is not None:
            return f"raised {self.error}"
        return ", ".join(self.difference.fields) if self.difference else "nothing"


def compare(seed: int, fixed: Mapping[str, object], without: Sequence[str] = ()) -> Outcome:
    """The program of a seed, parts of its family given, by the reference's rules but for those named."""
    setting = draw_setting(seed, **fixed)
    error = None
    with reference_rules(without):
        program = Program(random.Random(seed), setting.config, setting.weather)
        try:
            program.run()
        except Exception as raised:  # of either side: it is what the program found
            error = f"{type(raised).__name__}: {str(raised)[:200]}"
    history = program.history
    return Outcome(
        setting,
        rounds=len(history),
        retractions=program.ours.scheduler.stats().retractions,
        stored_blocks=sum(sum(view.stored) + sum(view.given_away) for view, _ in history),
        loaded_blocks=sum(sum(view.loaded) for view, _ in history),
        difference=program.difference,
        error=error,
        history=tuple(str(view) for view, _ in history[-8:]),
    )


def compare_many(
    seeds: Iterable[int], fixed: Mapping[str, object], without: Sequence[str], *, workers: int
) -> Iterator[Outcome]:
    """The outcome of each seed, in the order in which they end."""
    remaining = iter(seeds)
    running: set[Future[Outcome]] = set()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_hush) as pool:
        while True:
            while len(running) < 2 * workers and (seed := next(remaining, None)) is not None:
                running.add(pool.submit(compare, seed, fixed, without))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _hush() -> None:
    """The reference logs every retraction on standard output."""
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
