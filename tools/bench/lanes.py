"""One scheduler under one case, in this process: brought to its steady state, then timed, or run from end to end."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from control_plane import SchedulerConfig
from tools.bench.contender import Clock, Contender, RoundTimes, ServedRound
from tools.bench.workloads import Case, Service

SETUP_ROUND_LIMIT = 20_000


@dataclass(frozen=True)
class Served:
    """A service from its first request to its last, in seconds of the scheduler's thread."""

    submit_s: float
    rounds_s: float
    median_round_us: float
    rounds: int
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    finished: int
    is_complete: bool

    @property
    def seconds(self) -> float:
        """Submissions and rounds."""
        return self.submit_s + self.rounds_s

    @property
    def hit_rate(self) -> float:
        """The share of the prompts that came from the cache. Below 0: more was computed again than was hit."""
        return 1 - self.computed_tokens / self.prompt_tokens


class Lane(Protocol):
    """A scheduler of one kind, here or in another process."""

    name: str

    def reach_decoding(self, case: Case) -> None:
        """Take up a case and run until everybody decodes."""

    def rounds(self, case: Case, count: int) -> list[RoundTimes]:
        """So many more rounds of the case."""

    def serve(self, service: Service) -> Served:
        """A service, from the first request to the last."""

    def drop(self) -> None:
        """Its memory is needed for another."""


class LocalLane:
    """A scheduler of this process."""

    def __init__(self, make: Callable[[SchedulerConfig], Contender], name: str) -> None:
        self.name = name
        self._make = make
        self._contender: Contender | None = None

    def reach_decoding(self, case: Case) -> None:
        """Run the prompts through until every one of the batch decodes and no prefill goes on."""
        self._contender = contender = self._make(case.config)
        clock = clock_for(case)[1]

        def submit(name: str, index: int, *, waits: bool) -> None:
            tokens = case.blocked_prompt(index) if waits else case.decode_prompt(index)
            contender.submit(name, tokens, declared=case.max_new_tokens, output_tokens=case.max_new_tokens)

        for index in range(case.batch):
            submit(f"decode-{index}", index, waits=False)
        for _ in range(case.warmup_rounds):
            contender.serve_round(clock)
        for index in range(case.waiting):
            submit(f"wait-{index}", index, waits=True)
        for _ in range(SETUP_ROUND_LIMIT):
            shape = contender.serve_round(clock)
            if (shape.decodes, shape.extends) == (case.batch, 0):
                settle()
                return
        raise RuntimeError(f"{self.name} did not reach a full decode batch of {case.batch}")

    def rounds(self, case: Case, count: int) -> list[RoundTimes]:
        """So many more rounds of the case."""
        if self._contender is None:
            raise RuntimeError(f"{self.name} was not brought to decode: call reach_decoding first")
        _, clock = clock_for(case)
        return [self._contender.timed_round(clock) for _ in range(count)]

    def serve(self, service: Service) -> Served:
        """A service, from the first request to the last."""
        contender = self._make(service.config)
        prompts = service.prompts()
        submit_s, prompt_tokens, live, is_fed = 0.0, 0, 0, False
        rounds: list[ServedRound] = []
        spent = 0.0
        settle()
        while len(rounds) < service.round_limit and spent < service.seconds_limit:
            while not is_fed and live < service.live:
                prompt = next(prompts, None)
                if prompt is None:
                    is_fed = True
                    break
                submit_s += contender.submit(
                    prompt.name, prompt.tokens, declared=prompt.declared, output_tokens=prompt.output_tokens
                )
                prompt_tokens += len(prompt.tokens)
                live += 1
            if not live:
                break
            rounds.append(contender.serve_round(time.thread_time))
            live -= rounds[-1].finished
            spent += rounds[-1].seconds
        seconds = sorted(each.seconds for each in rounds)
        return Served(
            submit_s=submit_s,
            rounds_s=sum(seconds),
            median_round_us=seconds[len(seconds) // 2] * 1e6,
            rounds=len(rounds),
            prompt_tokens=prompt_tokens,
            computed_tokens=sum(each.computed_tokens for each in rounds),
            output_tokens=sum(each.decodes for each in rounds),
            finished=sum(each.finished for each in rounds),
            is_complete=is_fed and not live,
        )

    def drop(self) -> None:
        """Its memory is needed for another."""
        self._contender = None


def settle() -> None:
    """What long-running servers do after start: collect, then leave what lives out of later collections."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def clock_for(case: Case) -> tuple[str, Clock]:
    """CPU time of this thread, because on a shared machine the wall measures the neighbours.

    Reading it costs 0.6 us a time, too much beside a round of a few microseconds: those go by the wall.
    """
    return ("wall", time.perf_counter) if case.batch == 1 else ("thread CPU", time.thread_time)
