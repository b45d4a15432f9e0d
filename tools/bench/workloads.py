"""The measured cases and their token ids: one definition for every scheduler."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control_plane import CacheGroupConfig, GroupKind, SchedulerConfig
from control_plane.messages.columns import Int32s

DEFINITIONS: dict[str, Any] = json.loads(Path(__file__).with_name("workloads.json").read_text())
KINDS = {"full": GroupKind.FULL, "window": GroupKind.SLIDING, "state": GroupKind.STATE}
SPARE_BLOCKS = 63  # of the pool, beside what the requests hold


@dataclass(frozen=True)
class Case:
    """A full batch of `batch` requests decodes, round by round, while `waiting` prompts find no room.

    Lengths are tokens. Contexts differ by less than a page, so that page crossings spread evenly over the rounds.
    """

    workload: str
    name: str
    config: SchedulerConfig
    batch: int
    context: int
    max_new_tokens: int
    rounds: int
    warmup_rounds: int = 0
    waiting: int = 0
    waiting_prompt: int = 0

    @property
    def granularity(self) -> int:
        """Tokens of a prefix page."""
        return self.config.prefix_granularity

    @property
    def total_tokens(self) -> int:
        """Tokens of all contexts together."""
        return self.batch * self.context + self.waiting * self.waiting_prompt

    def decode_prompt(self, index: int) -> Int32s:
        """The prompt of one of the batch."""
        return token_ids(index, self.context - index % self.granularity)

    def blocked_prompt(self, index: int) -> Int32s:
        """A prompt that the pool has no room for."""
        return token_ids(30_000_000 + index, self.waiting_prompt)


@dataclass(frozen=True)
class Prompt:
    """One request of a service: what it declares (None: nothing) and how many tokens it really makes."""

    name: str
    tokens: Int32s
    declared: int | None
    output_tokens: int


@dataclass(frozen=True)
class Service:
    """Requests are served from the first to the last, at most `live` of them submitted and unfinished at once.

    `trace` names the rows that the prompts follow; without one each has `prompt` tokens, of which the first
    `shared_tokens` are the same for all, declares `declared` and makes `output` tokens. It is given up after so many
    rounds, or seconds of the scheduler.
    """

    workload: str
    name: str
    config: SchedulerConfig
    requests: int
    live: int
    repeats: int = 1
    prompt: int = 0
    output: int = 1
    declared: int | None = None
    shared_tokens: int = 0
    first_sequence: int = 0
    trace: str = ""
    round_limit: int = 1_000_000
    seconds_limit: float = 600.0

    def prompts(self) -> Iterator[Prompt]:
        """The requests in order."""
        if self.trace:
            yield from trace_prompts(Path(self.trace), self.requests)
            return
        head = token_ids(10_000_000, self.shared_tokens)
        for index in range(self.requests):
            tail = token_ids(self.first_sequence + index, self.prompt - self.shared_tokens)
            yield Prompt(f"r{index:04d}", np.concatenate([head, tail]), self.declared, self.output)


def token_ids(tag: int, count: int) -> Int32s:
    """`count` ids that depend only on the definitions' seed and on `tag`."""
    generator = np.random.default_rng([DEFINITIONS["seed"], tag])
    return generator.integers(0, DEFINITIONS["vocab"], count, dtype=np.int64).astype(np.int32)


def trace_prompts(path: Path, count: int) -> Iterator[Prompt]:
    """The first rows of a Mooncake trace: each of a row's hash ids stands for the same tokens wherever it occurs."""
    block_tokens = DEFINITIONS["W5"]["block_tokens"]
    known: dict[int, Int32s] = {}
    with path.open() as rows:
        for index, line in enumerate(rows):
            if index == count:
                return
            row = json.loads(line)
            for block in row["hash_ids"]:
                if block not in known:
                    generator = np.random.default_rng([DEFINITIONS["seed"], 7, block])
                    known[block] = generator.integers(0, DEFINITIONS["vocab"], block_tokens, dtype=np.int32)
            tokens = np.concatenate([known[block] for block in row["hash_ids"]])[: row["input_length"]]
            output_tokens = max(1, row["output_length"])
            yield Prompt(f"r{index:06d}", tokens, output_tokens, output_tokens)


def decode_cases() -> list[Case]:
    """W1: one full-attention group, batches of 1 to 1024, contexts of 1K to 128K."""
    w1 = DEFINITIONS["W1"]
    return [
        _decode_case(
            w1,
            workload="W1",
            name=f"{case['batch']} x {case['context']}, pages of {case['granularity']}",
            batch=case["batch"],
            context=case["context"],
            granularity=case["granularity"],
            groups=[{"id": "full", "kind": "full", "granularity": case["granularity"]}],
        )
        for case in w1["cases"]
    ]


def flat_case() -> Case:
    """256 requests of 128K: not among the shared cases, since only a round that does not grow can be measured there."""
    group = {"id": "full", "kind": "full", "granularity": 64}
    name = "256 x 131072, pages of 64"
    w1 = DEFINITIONS["W1"]
    return _decode_case(w1, workload="W1", name=name, batch=256, context=131072, granularity=64, groups=[group])


def hybrid_cases() -> list[Case]:
    """W2: several groups with different histories."""
    w2 = DEFINITIONS["W2"]
    return [
        _decode_case(
            w2,
            workload="W2",
            name=f"{case['name']}, {w2['batch']} x {w2['context']}",
            batch=w2["batch"],
            context=w2["context"],
            granularity=case["prefix_granularity"],
            groups=case["groups"],
        )
        for case in w2["cases"]
    ]


def _decode_case(
    definition: dict[str, Any],
    *,
    workload: str,
    name: str,
    batch: int,
    context: int,
    granularity: int,
    groups: list[dict[str, Any]],
) -> Case:
    tokens = context + definition["max_new_tokens"] + granularity
    blocks_each = sum(-(-tokens // group["granularity"]) + 3 for group in groups)
    config = SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=definition["setup_budget"],
        max_batch_size=batch,
        device_blocks=batch * blocks_each + SPARE_BLOCKS,
        groups=tuple(_group(group) for group in groups),
        max_context_tokens=tokens,
        mixed=False,
    )
    return Case(workload, name, config, batch, context, definition["max_new_tokens"], definition["rounds"])


def waiting_cases() -> list[Case]:
    """W6: a few decode while the pool is full and many prompts wait."""
    w6 = DEFINITIONS["W6"]
    batch, granularity = w6["decoding"], w6["granularity"]
    blocks_each = -(-(w6["context"] + w6["max_new_tokens"]) // granularity) + 2
    return [
        Case(
            workload="W6",
            name=f"{case['waiting']} waiting, {batch} decoding",
            config=_one_full_group(
                granularity,
                budget=w6["budget"],
                batch=batch + case["waiting"],
                blocks=batch * blocks_each - 1,
                context=max(w6["context"], w6["waiting_prompt"]) + w6["max_new_tokens"] + granularity,
            ),
            batch=batch,
            context=w6["context"],
            max_new_tokens=w6["max_new_tokens"],
            rounds=w6["rounds"],
            warmup_rounds=64,
            waiting=case["waiting"],
            waiting_prompt=w6["waiting_prompt"],
        )
        for case in w6["cases"]
    ]


def prompt_services() -> list[Service]:
    """W3: all prompts arrive at once, and each is over with its first token."""
    w3 = DEFINITIONS["W3"]
    services = []
    for case in w3["cases"]:
        granularity = case["granularity"]
        blocks = w3["requests"] * (-(-(w3["prompt"] + 64) // granularity) + 3) + SPARE_BLOCKS
        config = _one_full_group(
            granularity,
            budget=w3["budget"],
            batch=w3["max_batch"],
            blocks=blocks,
            context=w3["prompt"] + 64,
            mixed=False,
        )
        services.append(
            Service(
                workload="W3",
                name=case["name"],
                config=config,
                requests=w3["requests"],
                live=w3["requests"],
                repeats=3,
                prompt=w3["prompt"],
                declared=16,
                shared_tokens=case["shared_tokens"],
                first_sequence=11_000_000,
            )
        )
    return services


def pressure_services() -> list[Service]:
    """W4: the pool holds a part of what all requests need together, a host tier more than all of it."""
    w4 = DEFINITIONS["W4"]
    demand_blocks = w4["requests"] * (w4["prompt"] + w4["output"]) // w4["granularity"]
    config = _one_full_group(
        w4["granularity"],
        budget=w4["budget"],
        batch=w4["max_batch"],
        blocks=int(demand_blocks * w4["pool_fraction"]),
        context=w4["prompt"] + max(w4["output"], *(case["declared"] for case in w4["cases"])),
        host_blocks=int(demand_blocks * w4["host_fraction"]),
    )
    return [
        Service(
            workload="W4",
            name=case["name"],
            config=config,
            requests=w4["requests"],
            live=w4["requests"],
            prompt=w4["prompt"],
            output=w4["output"],
            declared=case["declared"] or None,
            first_sequence=20_000_000,
            round_limit=w4["round_limit"],
        )
        for case in w4["cases"]
    ]


def trace_services(trace: Path, *, requests: int | None = None) -> list[Service]:
    """W5: a recorded conversation in virtual time, where a round costs nothing."""
    w5 = DEFINITIONS["W5"]
    config = _one_full_group(
        w5["granularity"],
        budget=w5["budget"],
        batch=w5["max_batch"],
        blocks=w5["pool_tokens"] // w5["granularity"] - 1,
        context=1 << 18,
    )
    count = requests or w5["requests"]
    name = f"{trace.stem}, {count} requests"
    return [Service("W5", name, config, requests=count, live=w5["live"], trace=str(trace))]


def _one_full_group(
    granularity: int,
    *,
    budget: int,
    batch: int,
    blocks: int,
    context: int,
    mixed: bool = True,
    host_blocks: int = 0,
) -> SchedulerConfig:
    return SchedulerConfig(
        prefix_granularity=granularity,
        max_scheduled_tokens=budget,
        max_batch_size=batch,
        device_blocks=blocks,
        groups=(CacheGroupConfig(id="full", block_granularity=granularity),),
        max_context_tokens=context,
        mixed=mixed,
        host_blocks=host_blocks,
    )


def _group(group: dict[str, Any]) -> CacheGroupConfig:
    return CacheGroupConfig(
        id=group["id"],
        kind=KINDS[group["kind"]],
        block_granularity=group["granularity"],
        window=group.get("window", 0),
    )
