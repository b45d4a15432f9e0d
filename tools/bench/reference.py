"""The C++ scheduler of the `tokenspeed-scheduler` wheel under a case: a peer, used by tests and measurements only."""

from typing import Any

import tokenspeed_scheduler as ts

from control_plane.messages.columns import Int32s
from tools.bench.contender import SAMPLED_TOKEN, Clock, RoundShape, RoundTimes
from tools.bench.workloads import Case


class ReferenceScheduler:
    """Plan, read what a runtime needs from the plan, build the result events, advance."""

    name = "tokenspeed-scheduler"

    def __init__(self, case: Case) -> None:
        pages = case.pool_blocks + 1  # here the null page counts
        config = ts.SchedulerConfig()
        config.prefix_granularity = case.granularity
        config.num_device_pages = pages
        config.num_host_pages = 0
        config.disable_l2_cache = True
        config.enable_l3_storage = False
        config.max_scheduled_tokens = case.budget
        config.max_batch_size = case.batch + case.waiting
        config.enable_mixed_prefill_decode = case.mixed
        config.decode_input_tokens = 1
        config.overlap_schedule_depth = 0
        config.cache_groups = [
            ts.CacheGroupConfig(
                group_id="full",
                block_granularity=case.granularity,
                total_pages=pages,
                retention=ts.CacheRetention.FullHistory,
                family=ts.CacheGroupFamily.History,
            )
        ]
        self._max_new_tokens = case.max_new_tokens
        self._scheduler = ts.Scheduler(config)

    def submit(self, name: str, tokens: Int32s) -> None:
        """Put a prompt in line."""
        spec = ts.RequestSpec()
        spec.request_id = name
        spec.tokens = tokens.tolist()
        spec.max_new_tokens = self._max_new_tokens
        self._scheduler.submit_requests([spec])

    def step(self) -> RoundShape:
        """One round, not timed. Rows that reach the end of their prompt get a token."""
        names, _, lengths, num_extends, starts, totals, _, _ = read_plan(self._scheduler.next_execution_plan())
        landed = [
            name for row, name in enumerate(names) if row >= num_extends or starts[row] + lengths[row] >= totals[row]
        ]
        self._scheduler.advance(results(landed))
        return RoundShape(decodes=len(names) - num_extends, extends=num_extends)

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
        begin = clock()
        plan = self._scheduler.next_execution_plan()
        planned = clock()
        names = read_plan(plan)[0]
        read = clock()
        self._scheduler.advance(results(names))
        end = clock()
        return RoundTimes(plan=planned - begin, read=read - planned, advance=end - read)


def read_plan(plan: Any) -> tuple[Any, ...]:
    """Everything that a forward step needs, each accessor once."""
    if not plan.forward or not plan.forward[0].request_ids:
        raise RuntimeError("the reference scheduler planned nothing")
    forward = plan.forward[0]
    return (
        forward.request_ids,
        forward.request_pool_indices,
        forward.input_lengths,
        forward.num_extends(),
        forward.extend_prefix_lens,
        forward.prefill_lengths,
        forward.block_tables_arrays(),
        plan.pages_to_zero_arrays(),
    )


def results(names: list[str]) -> Any:
    """The event of a round in which each of `names` got a token."""
    event = ts.ExecutionEvent()
    add = event.add_event
    for name in names:
        result = ts.ForwardEvent.ExtendResult()
        result.request_id = name
        result.tokens = [SAMPLED_TOKEN]
        add(result)
    return event
