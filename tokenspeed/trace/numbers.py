"""A run in numbers: throughput, waits, percentiles, hits by tier, retractions, the use of the pool."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from control_plane.rounds.frames import NO_TIME
from control_plane.rounds.steps import Planned, Recording
from tokenspeed.trace.life import Life, PhaseKind
from tokenspeed.trace.lives import Lives
from tokenspeed.trace.pool import PoolCounts, Replayed

PERCENTS = (50, 90, 99)


class Spread(Struct, frozen=True):
    """How values spread, in the unit of its name."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Numbers(Struct, frozen=True, kw_only=True):
    """What a recording comes to. Times are of the recording machine, or virtual; None: nobody looked at a clock.

    Hit rates are cached tokens of prompts over prompt tokens, at first admissions. `pool_*` are parts of the device's
    LCM blocks, averaged over rounds; None where the recording begins in the middle of a run.
    """

    requests: int
    finished: int
    aborted: int
    failed: int
    not_over: int
    rounds: int
    prompt_tokens: int
    output_tokens: int
    discarded_tokens: int
    seconds: float | None
    output_tokens_per_s: float | None
    requests_per_s: float | None
    hit_rate: float
    hit_rate_device: float
    hit_rate_host: float
    retractions: int
    retracted_requests: int
    computed_again_tokens: int
    found_again_tokens: int
    tokens_per_round: float
    queue_ms: Spread | None
    ttft_ms: Spread | None
    inter_token_ms: Spread | None
    retracted_ms: Spread | None
    pool_used: float | None
    pool_used_peak: float | None
    pool_cached: float | None
    bytes: int
    bytes_per_round: float
    bytes_per_token: float


class Tally:
    """Adds up lives and tokens."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.gaps_us = array("q")

    def tokens(self, life: Life, count: int, time_us: int) -> None:
        """Tokens reached a request."""
        if life.output_tokens and NO_TIME not in (life.last_token_us, time_us):
            self.gaps_us.append(time_us - life.last_token_us)

    def ended(self, life: Life) -> None:
        """A request is over; what it waited for is no matter any more."""
        self.lives.append(life)


def numbers_of(recording: Recording, *, with_pool: bool = True, progress: Callable[[], None] | None = None) -> Numbers:
    """Read a recording and add it up. With `with_pool` its rounds are planned again for the use of the pool."""
    tally = Tally()
    lives = Lives(recording.header, on_end=tally.ended, on_tokens=tally.tokens)
    pool = Replayed(recording.header.config) if with_pool and not recording.header.part else None
    counts = PoolCounts(recording.header.config)
    first_us = last_us = NO_TIME
    rounds = 0
    for step in recording:
        lives.take(step)
        if step.time_us != NO_TIME:
            first_us = step.time_us if first_us == NO_TIME else first_us
            last_us = step.time_us
        if pool is not None:
            pool.take(step)
        if isinstance(step, Planned) and step.plan.has_work:
            rounds += 1
            if pool is not None and pool.differs_at is None:
                counts.add(pool.scheduler)
        if progress is not None:
            progress()
    for life in lives.live.values():
        tally.ended(life)
    seconds = (last_us - first_us) / 1e6 if NO_TIME not in (first_us, last_us) else None
    return _numbers(tally, lives, counts if counts.rounds else None, rounds, seconds, recording.bytes_read)


def _numbers(
    tally: Tally, lives: Lives, counts: PoolCounts | None, rounds: int, seconds: float | None, size: int
) -> Numbers:
    everybody = tally.lives
    prompt, output = (sum(getattr(life, name) for life in everybody) for name in ("prompt_tokens", "output_tokens"))
    cached = sum(life.cached_tokens for life in everybody)
    from_host = sum(life.cached_host_tokens for life in everybody)
    over = [life for life in everybody if life.end]
    finished = sum(life.end in ("stop", "length", "transferred") for life in over)
    aborted = sum(life.end == "abort" for life in over)
    admitted = [life for life in everybody if life.is_admitted]
    share = float(prompt or 1)
    return Numbers(
        requests=len(everybody),
        finished=finished,
        aborted=aborted,
        failed=len(over) - finished - aborted,
        not_over=len(everybody) - len(over),
        rounds=rounds,
        prompt_tokens=prompt,
        output_tokens=output,
        discarded_tokens=lives.discarded_tokens,
        seconds=seconds,
        output_tokens_per_s=output / seconds if seconds else None,
        requests_per_s=len(over) / seconds if seconds else None,
        hit_rate=cached / share,
        hit_rate_device=(cached - from_host) / share,
        hit_rate_host=from_host / share,
        retractions=sum(life.retractions for life in everybody),
        retracted_requests=sum(life.retractions > 0 for life in everybody),
        computed_again_tokens=sum(life.computed_again_tokens for life in everybody),
        found_again_tokens=sum(life.found_again_tokens for life in everybody),
        tokens_per_round=output / rounds if rounds else 0.0,
        queue_ms=_spread([_between(life.submitted_us, life.admitted_us) for life in admitted]),
        ttft_ms=_spread([_between(life.submitted_us, life.first_token_us) for life in admitted]),
        inter_token_ms=_spread(tally.gaps_us),
        retracted_ms=_spread([_retracted_us(life) for life in everybody if life.retractions]),
        pool_used=counts.used if counts else None,
        pool_used_peak=counts.used_peak if counts else None,
        pool_cached=counts.cached if counts else None,
        bytes=size,
        bytes_per_round=size / rounds if rounds else 0.0,
        bytes_per_token=size / output if output else 0.0,
    )


def _between(begin_us: int, end_us: int) -> int:
    return end_us - begin_us if NO_TIME not in (begin_us, end_us) else NO_TIME


def _retracted_us(life: Life) -> int:
    waits = (PhaseKind.RETRACTED, PhaseKind.AWAITS_ACK)
    return sum(max(0, phase.duration_us) for phase in life.phases if phase.kind in waits)


def _spread(times_us: "Sequence[int] | array[int]") -> Spread | None:
    """Of times in microseconds, in milliseconds; those nobody knows left out."""
    known = np.array(times_us, dtype=np.int64)
    known = known[known != NO_TIME] / 1000.0
    if not len(known):
        return None
    p50, p90, p99 = (float(value) for value in np.percentile(known, PERCENTS))
    return Spread(len(known), float(known.mean()), p50, p90, p99, float(known.max()))


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Name and value of each number, for a person."""
    told = []
    for name in Numbers.__struct_fields__:
        value: Any = getattr(numbers, name)
        if isinstance(value, Spread):
            told += [(f"{name} {part}", f"{getattr(value, part):.2f}") for part in ("mean", "p50", "p90", "p99", "max")]
        elif value is None:
            told.append((name, "-"))
        elif name.startswith(("hit_rate", "pool_")):
            told.append((name, f"{100 * value:.2f} %"))
        else:
            told.append((name, f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"))
    return told
