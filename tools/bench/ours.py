"""Our scheduler under a case: what one round costs the loop and the wire together."""

import numpy as np

from control_plane import CacheGroupConfig, Scheduler, SchedulerConfig
from control_plane.messages import ExecutionPlan, ExtendResult, RequestSpec
from control_plane.messages.columns import Int32s, view
from control_plane.messages.wire import decode_plan, encode_plan
from data_plane.batch.rows import Rows
from tools.bench.contender import SAMPLED_TOKEN, Clock, RoundShape, RoundTimes
from tools.bench.workloads import Case


class OurScheduler:
    """Plan, encode, decode and read the columns, build the results, advance."""

    name = "tokenspeed"

    def __init__(self, case: Case) -> None:
        group = CacheGroupConfig(id="full", block_granularity=case.granularity)
        config = SchedulerConfig(
            prefix_granularity=case.granularity,
            max_scheduled_tokens=case.budget,
            max_batch_size=case.batch + case.waiting,
            device_blocks=case.pool_blocks,
            groups=(group,),
            max_context_tokens=max(case.context, case.waiting_prompt) + case.max_new_tokens + case.granularity,
            mixed=case.mixed,
        )
        self._max_new_tokens = case.max_new_tokens
        self._scheduler = Scheduler(config)

    def submit(self, name: str, tokens: Int32s) -> None:
        """Put a prompt in line."""
        self._scheduler.submit([RequestSpec(id=name, tokens=tokens.tobytes(), max_new_tokens=self._max_new_tokens)])

    def step(self) -> RoundShape:
        """One round, not timed. Rows that reach the end of their prompt get a token."""
        plan = self._scheduler.next_plan()
        if plan.forward is None:
            raise RuntimeError("the scheduler planned nothing")
        rows = Rows(plan.forward)
        counts = rows.samples.astype(np.int32)
        tokens = np.full(int(counts.sum()), SAMPLED_TOKEN, dtype=np.int32)
        self._scheduler.advance([ExtendResult(plan.round, plan.forward.keys, counts.tobytes(), tokens.tobytes())])
        return RoundShape(decodes=rows.count - rows.num_extends, extends=rows.num_extends)

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
        begin = clock()
        plan = self._scheduler.next_plan()
        planned = clock()
        rows = read_plan(decode_plan(encode_plan(plan)))
        read = clock()
        counts = np.ones(rows.count, dtype=np.int32).tobytes()
        tokens = np.full(rows.count, SAMPLED_TOKEN, dtype=np.int32).tobytes()
        self._scheduler.advance([ExtendResult(plan.round, rows.keys.tobytes(), counts, tokens)])
        end = clock()
        return RoundTimes(plan=planned - begin, read=read - planned, advance=end - read)


def read_plan(plan: ExecutionPlan) -> Rows:
    """Every column that the data plane looks at, as arrays."""
    assert plan.forward is not None, "a decode round without a batch"
    for blocks in plan.zero:
        view(blocks.blocks)
    for edit in plan.tables:
        view(edit.blocks)
    return Rows(plan.forward)
