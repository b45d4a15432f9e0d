"""A pool far too small for the work, with requests that did not say how much they will write."""

from collections import Counter

import pytest

from control_plane import GroupKind
from control_plane.loop.commit import StopRule
from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_plan
from tests.properties.programs import STOP_TOKEN, Group, Program, Setting, Submit

PROMPT_TOKENS = 200
REQUESTS = 64
MIXES = {
    "full": ((Group(GroupKind.FULL, 1),), 2000),
    "full and sliding": ((Group(GroupKind.FULL, 1), Group(GroupKind.SLIDING, 2, 2, window=100)), 300),
}


def _setting(groups: tuple[Group, ...], output_tokens: int, host_blocks: int) -> Setting:
    """40 % of what all requests would hold together at their longest, in the group that keeps everything."""
    demand = REQUESTS * (PROMPT_TOKENS + output_tokens) // 16
    return Setting(
        prefix_granularity=16,
        groups=groups,
        budget_tokens=512,
        batch=REQUESTS,
        pool=demand * 4 // 10,
        overlap_depth=1,
        mixed=True,
        prefix_cache=True,
        safe_steps=4096,
        max_overtakes=32,
        stop_probability=0.0,
        host_blocks=host_blocks,
        context_tokens=4096,
    )


@pytest.mark.slow
@pytest.mark.parametrize("host_blocks", [0, 20_000], ids=["no host tier", "host tier"])
@pytest.mark.parametrize("mix", MIXES)
def test_a_pool_at_two_fifths_of_demand_serves_everybody(mix: str, host_blocks: int) -> None:
    """R5, R7: 64 requests of 2,000 undeclared tokens all end, none retracted more than 3 times, each as if alone.

    With the host tier a request that comes back computes no more than a chunk again.
    """
    groups, output_tokens = MIXES[mix]
    program = Program(_setting(groups, output_tokens, host_blocks))
    program.audits_every = 400
    for index in range(REQUESTS):
        program.submit(Submit(index % 4, 80, PROMPT_TOKENS - 80, None, seed=0))
    for key, story in program.stories.items():
        program.rules.add(key, StopRule(stop_token_ids=(STOP_TOKEN,), max_new_tokens=output_tokens))
        story.limit_tokens = output_tokens
    requests = dict(program.scheduler.requests)
    program.finish()
    program.check_tokens()
    program.check_books()
    retractions = {key: request.retraction_count for key, request in requests.items()}
    assert len(retractions) == REQUESTS
    assert 0 < max(retractions.values()) <= 3
    if host_blocks:
        plans = [decode_plan(plan) for plan in program.plans]
        assert {key: chunks for key, chunks in _recovery_chunks(plans).items() if chunks > retractions[key]} == {}


def _recovery_chunks(plans: list[ExecutionPlan]) -> Counter[int]:
    """How many chunks of each request computed tokens again that it had generated."""
    chunks: Counter[int] = Counter()
    for plan in plans:
        batch = plan.forward
        if batch is None:
            continue
        for key, tokens in zip(view(batch.keys).tolist(), view(batch.prefill_lengths).tolist(), strict=False):
            chunks[key] += tokens > PROMPT_TOKENS
    return chunks
