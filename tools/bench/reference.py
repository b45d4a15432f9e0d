"""The C++ scheduler of the `tokenspeed-scheduler` wheel under a case: a peer, used by tests and measurements only."""

import time
from typing import Any

import tokenspeed_scheduler as ts

from control_plane import CacheGroupConfig, GroupKind, SchedulerConfig
from control_plane.config import Role
from control_plane.messages.columns import Int32s
from tools.bench.contender import SAMPLED_TOKEN, Clock, RoundTimes, ServedRound

ROLES = {
    Role.FUSED: ts.SchedulerConfig.Role.Fused,
    Role.PREFILL: ts.SchedulerConfig.Role.P,
    Role.DECODE: ts.SchedulerConfig.Role.D,
}


def reference_config(config: SchedulerConfig) -> Any:
    """Our configuration in the reference's words. There the null page counts."""
    c = ts.SchedulerConfig()
    c.role = ROLES[config.role]
    c.prefix_granularity = config.prefix_granularity
    c.num_device_pages = config.device_blocks + 1
    c.num_host_pages = config.host_blocks + 1 if config.host_blocks else 0
    c.disable_l2_cache = not config.host_blocks
    c.enable_l3_storage = False
    c.max_scheduled_tokens = config.max_scheduled_tokens
    c.max_batch_size = config.max_batch_size
    c.enable_mixed_prefill_decode = config.mixed
    c.decode_input_tokens = config.decode_width
    c.overlap_schedule_depth = config.overlap_depth
    c.disable_prefix_cache = not config.prefix_cache
    c.cache_groups = [_group(group, config) for group in config.groups]
    return c


def _group(group: CacheGroupConfig, config: SchedulerConfig) -> Any:
    fields: dict[str, Any] = {}
    if group.kind is GroupKind.SLIDING:
        fields["sliding_window_tokens"] = group.window
        fields["replayable"] = group.replayable
    made = ts.CacheGroupConfig(
        group_id=group.id,
        block_granularity=group.block_granularity,
        total_pages=config.device_blocks + 1,
        cache_blocks_per_lcm_block=group.packing,
        retention=ts.CacheRetention.SlidingWindow if group.kind is GroupKind.SLIDING else ts.CacheRetention.FullHistory,
        family=ts.CacheGroupFamily.State if group.kind is GroupKind.STATE else ts.CacheGroupFamily.History,
        **fields,
    )
    if config.role is not Role.FUSED:
        is_state = group.kind is GroupKind.STATE
        policies = ts.CacheTransferPolicy
        made.transfer_policy = policies.LatestSnapshot if is_state else policies.FullSuffix
    return made


class ReferenceScheduler:
    """Plan, read what a runtime needs from the plan, build the result events, advance."""

    name = "tokenspeed-scheduler"

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler = ts.Scheduler(reference_config(config))
        self._left: dict[str, int] = {}
        self._acknowledgements: list[Any] = []

    def submit(self, name: str, tokens: Int32s, *, declared: int | None, output_tokens: int) -> float:
        """Put a prompt in line."""
        listed = tokens.tolist()
        begin = time.thread_time()
        spec = ts.RequestSpec()
        spec.request_id = name
        spec.tokens = listed
        spec.max_new_tokens = declared or 0
        self._scheduler.submit_requests([spec])
        seconds = time.thread_time() - begin
        self._left[name] = output_tokens
        return seconds

    def serve_round(self, clock: Clock) -> ServedRound:
        """One round of any kind. Copies are acknowledged with the round after theirs."""
        begin = clock()
        plan = self._scheduler.next_execution_plan()
        has_batch = bool(plan.forward and plan.forward[0].request_ids)
        if not has_batch and not plan.cache and not self._acknowledgements:
            raise RuntimeError("the reference scheduler planned nothing")
        names, lengths, extends, landed = [], [], 0, []
        if has_batch:
            names, _, lengths, extends, starts, totals, _, _ = read_plan(plan)
            landed = [
                name for row, name in enumerate(names) if row >= extends or starts[row] + lengths[row] >= totals[row]
            ]
        event = results(landed)
        for acknowledgement in self._acknowledgements:
            event.add_event(acknowledgement)
        read = clock()
        over = []
        for name in landed:
            self._left[name] -= 1
            if not self._left[name]:
                del self._left[name]
                over.append(name)
        decided = clock()
        for name in over:
            finish = ts.ForwardEvent.Finish()
            finish.request_id = name
            event.add_event(finish)
        self._scheduler.advance(event)
        seconds = clock() - decided + read - begin
        self._acknowledgements = [_done(batch, op) for batch in plan.cache for op in batch.op_ids]
        return ServedRound(len(names) - extends, extends, sum(lengths[:extends]), len(over), seconds)

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


def _done(batch: Any, op: int) -> Any:
    if isinstance(batch, ts.Cache.WriteBackOp):
        done = ts.Cache.WriteBackDoneEvent()
        done.op_id = op
        return done
    return ts.Cache.LoadBackDoneEvent(op, True)
