"""The measured cases and their token ids: one definition for every scheduler."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control_plane.messages.columns import Int32s

DEFINITIONS: dict[str, Any] = json.loads(Path(__file__).with_name("workloads.json").read_text())


@dataclass(frozen=True)
class Case:
    """One scheduler under one load. `waiting` prompts cannot be admitted while `batch` requests decode.

    Lengths are tokens; `pool_blocks` leaves the null block out.
    """

    workload: str
    batch: int
    context: int
    granularity: int
    pool_blocks: int
    max_new_tokens: int
    budget: int
    rounds: int
    mixed: bool = False
    warmup_rounds: int = 0
    waiting: int = 0
    waiting_prompt: int = 0

    @property
    def total_tokens(self) -> int:
        """Tokens of all contexts together."""
        return self.batch * self.context + self.waiting * self.waiting_prompt

    def decode_prompt(self, index: int) -> Int32s:
        """Prompts differ in length by less than a page, so that page crossings spread evenly over the rounds."""
        return token_ids(index, self.context - index % self.granularity)

    def blocked_prompt(self, index: int) -> Int32s:
        """A prompt that the pool has no room for."""
        return token_ids(30_000_000 + index, self.waiting_prompt)


def token_ids(tag: int, count: int) -> Int32s:
    """`count` ids that depend only on the definitions' seed and on `tag`."""
    generator = np.random.default_rng([DEFINITIONS["seed"], tag])
    return generator.integers(0, DEFINITIONS["vocab"], count, dtype=np.int64).astype(np.int32)


def decode_cases() -> list[Case]:
    """W1: a full batch decodes."""
    w1 = DEFINITIONS["W1"]
    cases = []
    for case in w1["cases"]:
        tokens = case["context"] + w1["max_new_tokens"] + case["granularity"]
        blocks_each = -(-tokens // case["granularity"]) + 3
        cases.append(
            Case(
                workload="W1",
                batch=case["batch"],
                context=case["context"],
                granularity=case["granularity"],
                pool_blocks=case["batch"] * blocks_each + 63,
                max_new_tokens=w1["max_new_tokens"],
                budget=w1["setup_budget"],
                rounds=w1["rounds"],
            )
        )
    return cases


def waiting_cases() -> list[Case]:
    """W6: a few decode while the pool is full and many prompts wait."""
    w6 = DEFINITIONS["W6"]
    blocks_each = -(-(w6["context"] + w6["max_new_tokens"]) // w6["granularity"]) + 2
    return [
        Case(
            workload="W6",
            batch=w6["decoding"],
            context=w6["context"],
            granularity=w6["granularity"],
            pool_blocks=w6["decoding"] * blocks_each - 1,
            max_new_tokens=w6["max_new_tokens"],
            budget=w6["budget"],
            rounds=w6["rounds"],
            mixed=True,
            warmup_rounds=64,
            waiting=case["waiting"],
            waiting_prompt=w6["waiting_prompt"],
        )
        for case in w6["cases"]
    ]
