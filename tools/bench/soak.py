"""`python -m tools.bench soak`: does memory grow with rounds, and what does a resident request cost?

Requests that share prefixes come and go over a pool that is too small for them, with a host tier below, so that
everything that a scheduler remembers is remembered and forgotten again all the time.
"""

import gc
import os
import sys
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from control_plane import CacheGroupConfig, GroupKind, SchedulerConfig
from control_plane.messages.columns import Int32s
from tools.bench.figures import markdown_table
from tools.bench.ours import OurScheduler
from tools.bench.workloads import Case, token_ids

LIVE = 9
OUTPUT_TOKENS = 240  # of a request at most
FAMILIES = 16  # prompts begin with one of so many prefixes
SAMPLES = 20
SETTLED = 4  # samples after which everything has reached its size
CONFIG = SchedulerConfig(
    prefix_granularity=16,
    max_scheduled_tokens=256,
    max_batch_size=6,
    device_blocks=110,
    host_blocks=80,
    groups=(
        CacheGroupConfig(id="full", block_granularity=16),
        CacheGroupConfig(id="sliding", kind=GroupKind.SLIDING, block_granularity=16, window=40),
    ),
    max_context_tokens=512,
    overlap_depth=0,
)


@dataclass
class Sample:
    """What the process held after so many rounds."""

    rounds: int
    resident_bytes: int
    allocated_blocks: int


@dataclass
class Soak:
    """A soak from beginning to end."""

    samples: list[Sample] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0

    @property
    def growth_bytes(self) -> int:
        """Resident memory at the end over that when everything had reached its size."""
        return self.samples[-1].resident_bytes - self.samples[SETTLED].resident_bytes

    @property
    def growth_blocks(self) -> int:
        """Python's own blocks of memory, likewise."""
        return self.samples[-1].allocated_blocks - self.samples[SETTLED].allocated_blocks


def soak(rounds: int) -> Soak:
    """So many rounds under changing load, with samples. Raises RuntimeError if the books do not add up."""
    contender = OurScheduler(CONFIG)
    generator = np.random.default_rng(13)
    heads = [token_ids(40_000_000 + family, 160) for family in range(FAMILIES)]
    done, live, begin = Soak(), 0, time.perf_counter()
    for number in range(rounds):
        while live < LIVE:
            contender.submit(
                f"s{done.requests}", _prompt(generator, heads), declared=OUTPUT_TOKENS, output_tokens=_length(generator)
            )
            done.requests += 1
            live += 1
        live -= contender.serve_round(time.perf_counter).finished
        if number % max(1, rounds // SAMPLES) == 0 or number == rounds - 1:
            gc.collect()
            done.samples.append(Sample(number, _resident_bytes(), sys.getallocatedblocks()))
    while live:
        live -= contender.serve_round(time.perf_counter).finished
    problems = contender.audit()
    if problems:
        raise RuntimeError(f"after {rounds} rounds: {problems}")
    done.seconds = time.perf_counter() - begin
    return done


def bytes_per_resident(case: Case) -> float:
    """Bytes that one decoding request costs beside 4 a token: what was allocated since it was not there."""
    contender = OurScheduler(case.config)
    prompts = [case.decode_prompt(index) for index in range(case.batch)]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for index, prompt in enumerate(prompts):
        contender.submit(f"r{index}", prompt, declared=case.max_new_tokens, output_tokens=case.max_new_tokens)
    while (shape := contender.serve_round(time.perf_counter)).decodes < case.batch or shape.extends:
        pass
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    token_bytes = sum(prompt.nbytes for prompt in prompts)
    return (after - before - token_bytes) / case.batch


def describe_soak(done: Soak, resident: list[tuple[Case, float]]) -> str:
    """The growth, and a row a case."""
    settled, last = done.samples[SETTLED], done.samples[-1]
    text = (
        f"{last.rounds + 1} rounds, {done.requests} requests in {done.seconds:.0f} s. After round {settled.rounds} the "
        f"process held {settled.resident_bytes / 2**20:.1f} MiB and {settled.allocated_blocks} of Python's blocks; at "
        f"the end {done.growth_bytes / 1024:+.0f} KiB and {done.growth_blocks:+d} blocks."
    )
    rows = [[case.name, f"{cost:.0f}", f"{cost / (case.context / case.granularity):.0f}"] for case, cost in resident]
    return f"{text}\n\n{markdown_table(['resident requests', 'bytes each, beside 4 a token', 'a page of each'], rows)}"


def _prompt(generator: np.random.Generator, heads: list[Int32s]) -> Int32s:
    head = heads[int(generator.integers(len(heads)))][: int(generator.integers(1, 160))]
    tail = generator.integers(0, 100_000, int(generator.integers(1, 64)), dtype=np.int32)
    return np.concatenate([head, tail])


def _length(generator: np.random.Generator) -> int:
    return int(generator.integers(1, OUTPUT_TOKENS))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
