"""A pool far too small for the work, with requests that did not say how much they will write."""

from collections import Counter
from pathlib import Path

import pytest

from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_plan
from control_plane.rounds.trace import FrameKind, TraceReader
from tools.simulate.engine import Watch
from tools.simulate.program import Group, Setting, Submit
from tools.simulate.world import World

PROMPT_TOKENS = 200
REQUESTS = 64
MIXES = {
    "full": ((Group(),), 2000),
    "full and sliding": ((Group(), Group("sliding", fraction=2, packing=2, window=100)), 300),
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
        host_blocks=host_blocks,
        context_tokens=4096,
    )


@pytest.mark.slow
@pytest.mark.parametrize("host_blocks", [0, 20_000], ids=["no host tier", "host tier"])
@pytest.mark.parametrize("mix", MIXES)
def test_a_pool_at_two_fifths_of_demand_serves_everybody(mix: str, host_blocks: int, tmp_path: Path) -> None:
    """R5, R7: 64 requests of 2,000 undeclared tokens all end, none retracted more than 3 times, each as if alone.

    With the host tier a request that comes back computes no more than a chunk again.
    """
    groups, output_tokens = MIXES[mix]
    world = World(_setting(groups, output_tokens, host_blocks), tmp_path, watch=Watch(audits_every=800))
    own_tokens = PROMPT_TOKENS - 80
    world.run(
        Submit(base=index % 4, shared_tokens=80, own_tokens=own_tokens, stops_after=output_tokens)
        for index in range(REQUESTS)
    )
    assert Counter(story.reason for story in world.stories) == {"length": REQUESTS}
    retractions = {story.request.key: story.request.retraction_count for story in world.stories}
    assert 0 < max(retractions.values()) <= 3
    if host_blocks:
        (engine,) = world.engines.values()
        frames = TraceReader(engine.recording)
        plans = [decode_plan(frame.payload) for frame in frames if frame.kind is FrameKind.PLAN]
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
