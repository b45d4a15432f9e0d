"""What `/metrics` says is what happened (J1, J2, J4), and its pages name only what exists."""

import asyncio
from typing import Any

from data_plane.model.stamp import StampOptions, StampRunner
from tokenspeed.server.metric_families import FAMILIES, HTTP_REQUESTS


async def test_every_family_is_shown_with_its_model(server: Any) -> None:
    """Also before anything was asked: a panel is empty, never in error."""
    _, text = await server.get("/metrics")
    for family in FAMILIES:
        assert f"# TYPE {family.shown_name} {family.kind}\n" in text
        lines = [line for line in text.splitlines() if line.startswith(family.shown_name) and "_created" not in line]
        assert lines
        assert all('model_name="stamp"' in line for line in lines)
    assert f"# TYPE {HTTP_REQUESTS.shown_name} counter\n" in text
    assert "process_resident_memory_bytes" in text


async def test_times_and_sizes_of_requests_are_counted_once(server: Any) -> None:
    """One first token a request, one gap for each further token, and every request in each histogram."""
    await asyncio.gather(*(server.post("completions", prompt="x" * (8 + i), max_tokens=1 + i) for i in range(6)))
    seen = await server.metrics()

    def number(name: str, **labels: str) -> float:
        return float(seen[name, frozenset(labels.items())])

    for name in ("request_queue_time", "time_to_first_token", "e2e_request_latency", "request_prefill_time"):
        assert number(f"{name}_seconds_count") == 6
        assert number(f"{name}_seconds_bucket", le="+Inf") == 6
    assert number("inter_token_latency_seconds_count") == sum(range(6))
    assert number("request_time_per_output_token_seconds_count") == 5
    assert number("generation_tokens_total") == number("request_generation_tokens_sum") == 21
    assert number("prompt_tokens_total") == number("request_prompt_tokens_sum") == 63
    assert number("request_params_max_tokens_sum") == 21
    assert number("request_success_total", finished_reason="length") == 6
    assert number("request_success_total", finished_reason="abort") == 0
    assert number("time_to_first_token_seconds_sum") <= number("e2e_request_latency_seconds_sum")
    # Six prompts, and a decode step for all but the last token of each; batches may differ, their tokens do not.
    assert number("iteration_tokens_total_sum") == 63 + sum(range(6))


async def test_an_end_is_counted_by_its_reason(serve: Any, gated: Any) -> None:
    """A stop string is a stop, a client that goes an abort; who never entered a round has no times."""
    server = await serve(runner=gated)
    leaving = asyncio.create_task(server.post("completions", prompt="x"))
    while not server.engine.stats().scheduler.running:
        await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    gated.gate.set()
    while server.engine.unfinished_count or server.engine.stats().scheduler.running:
        await asyncio.sleep(0)
    assert await server.metric("request_success_total", finished_reason="abort") == 1
    assert await server.metric("e2e_request_latency_seconds_count") == 1
    _, answer = await server.post("completions", prompt="x", max_tokens=9, temperature=0)
    word = answer["choices"][0]["text"].split()[4]
    await server.post("completions", prompt="x", max_tokens=9, temperature=0, stop=f" {word}")
    assert await server.metric("request_success_total", finished_reason="stop") == 1
    assert await server.metric("num_requests_running") == 0


async def test_a_retracted_prompt_counts_once(serve: Any) -> None:
    """J1: what retracted requests find again is a number of its own; hits stay within the prompts' tokens."""
    server = await serve(device_blocks=24, max_batch_size=4, safe_steps=16, max_context_tokens=256)
    users = [[{"role": "user", "content": f"{number}" * 40}] for number in range(4)]
    asked = [server.post("chat/completions", messages=user, ignore_eos=True) for user in users]
    usages = [answer["usage"] for status, answer in await asyncio.gather(*asked) if status == 200]
    assert len(usages) == 4
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    retractions = await server.metric("num_preemptions_total")
    assert retractions > 0
    assert await server.metric("retractions_total", reason="capacity") == retractions
    assert await server.metric("prompt_tokens_total") == prompt_tokens
    assert await server.metric("prefix_cache_queries_total") == prompt_tokens
    hits = await server.metric("prefix_cache_hits_total")
    assert hits == sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages) < prompt_tokens
    assert await server.metric("generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)


async def test_what_a_retracted_request_finds_again_is_no_hit(serve: Any) -> None:
    """J1: with a host tier they come back with their pages: a counter of its own says how many tokens."""
    settings = {"device_blocks": 24, "host_memory_bytes": 2**20, "max_batch_size": 4, "max_context_tokens": 256}
    server = await serve(safe_steps=16, **settings)
    users = [[{"role": "user", "content": f"{number}" * 40}] for number in range(4)]
    await asyncio.gather(*(server.post("chat/completions", messages=user, ignore_eos=True) for user in users))
    assert await server.metric("num_preemptions_total") > 0
    assert await server.metric("recovered_tokens_total") > 0
    assert await server.metric("prefix_cache_hits_total") < await server.metric("prompt_tokens_total")
    assert await server.metric("loaded_blocks_total") > 0


async def test_blocks_of_groups_add_up(serve: Any) -> None:
    """J4: full, sliding and state groups over one pool of 20 blocks, in every round, and hits by group."""
    options = StampOptions(
        max_context_tokens=96,
        group_kinds=("full", "sliding", "state"),
        block_granularities=(16, 16, 16),
        packings=(1, 2, 4),
        windows=(0, 32, 0),
    )
    server = await serve(runner=StampRunner(options), device_blocks=20, max_context_tokens=96)
    prompts = ["x" * 64, "x" * 64 + "y", "z" * 40]
    for prompt in prompts:
        asked = asyncio.create_task(server.post("completions", prompt=prompt, max_tokens=16))
        while not asked.done():
            stats = server.engine.stats().scheduler
            assert stats.used_blocks == sum(group.used_blocks for group in stats.groups)
            assert stats.cached_blocks == sum(group.cached_blocks for group in stats.groups)
            assert stats.used_blocks + stats.cached_blocks + stats.free_blocks == stats.total_blocks == 20
            await asyncio.sleep(0)
        assert (await asked)[0] == 200
    full, sliding, state = server.engine.stats().scheduler.groups
    assert [group.id for group in (full, sliding, state)] == ["full-0", "sliding-1", "state-2"]
    hit_pages = await server.metric("prefix_cache_hits_total") / 16
    assert full.hit_blocks == hit_pages > 0
    assert await server.metric("prefix_cache_group_hits_total", group="full-0") == full.hit_blocks
    # Pages of 64, 65 and 40 tokens of which one at least is computed: 3, 4 and 2; a window reads two, a snapshot one.
    assert [full.queried_blocks, sliding.queried_blocks, state.queried_blocks] == [9, 6, 3]
    assert (sliding.hit_blocks, state.hit_blocks) == (2, 1)
    assert await server.metric("cache_group_blocks", group="state-2", state="used") == 0
