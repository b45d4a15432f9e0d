"""Our scheduler under a case: what one round costs the loop and the wire together."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from control_plane import Scheduler, SchedulerConfig
from control_plane.messages import (
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    FinishReason,
    LoadBackDone,
    RequestSpec,
    WriteBackDone,
)
from control_plane.messages.columns import Int32s, pack, repeat, view
from control_plane.messages.wire import decode_events, decode_plan, encode_events, encode_plan
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.writer import TraceWriter
from data_plane.batch.rows import Rows
from tools.bench.contender import SAMPLED_TOKEN, Clock, RoundTimes, ServedRound


class OurScheduler:
    """Plan, encode, decode and read the columns, build the results, advance."""

    name = "tokenspeed"

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler: Scheduler | RecordingScheduler = Scheduler(config)
        self._left: dict[int, int] = {}
        self._acknowledgements: list[Event] = []

    def submit(self, name: str, tokens: Int32s, *, declared: int | None, output_tokens: int) -> float:
        """Put a prompt in line."""
        column = tokens.tobytes()
        begin = time.thread_time()
        (key,) = self._scheduler.submit([RequestSpec(id=name, tokens=column, max_new_tokens=declared)])
        seconds = time.thread_time() - begin
        self._left[key] = output_tokens
        return seconds

    def serve_round(self, clock: Clock) -> ServedRound:
        """One round of any kind. Copies are acknowledged with the round after theirs."""
        begin = clock()
        plan = self._scheduler.next_plan()
        if not plan.has_work and not self._acknowledgements:
            raise RuntimeError("the scheduler planned nothing")
        plan = decode_plan(encode_plan(plan))
        rows = read_plan(plan)
        events: list[Event] = list(self._acknowledgements)
        if rows is not None:
            counts = rows.samples.astype(np.int32)
            tokens = repeat(SAMPLED_TOKEN, int(counts.sum()))
            events.append(ExtendResult(plan.round, rows.keys.tobytes(), counts.tobytes(), tokens))
        read = clock()
        over = self._count_down(rows.keys[rows.samples].tolist() if rows is not None else [])
        decided = clock()
        events += [Finish(key, FinishReason.LENGTH) for key in over]
        self._scheduler.advance(events)
        seconds = clock() - decided + read - begin
        self._acknowledgements = [WriteBackDone(store.op) for store in plan.stores]
        self._acknowledgements += [LoadBackDone(load.op) for load in plan.load_backs]
        if rows is None:
            return ServedRound(0, 0, 0, 0, seconds)
        extends = rows.num_extends
        return ServedRound(rows.count - extends, extends, int(rows.input_lengths[:extends].sum()), len(over), seconds)

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
        begin = clock()
        plan = self._scheduler.next_plan()
        planned = clock()
        rows = read_plan(decode_plan(encode_plan(plan)))
        read = clock()
        assert rows is not None, "a decode round without a batch"
        counts, tokens = repeat(1, rows.count), repeat(SAMPLED_TOKEN, rows.count)
        self._scheduler.advance([ExtendResult(plan.round, rows.keys.tobytes(), counts, tokens)])
        end = clock()
        return RoundTimes(plan=planned - begin, read=read - planned, advance=end - read)

    def audit(self) -> list[str]:
        """What of the scheduler's books does not add up."""
        return self._scheduler.audit()

    def _count_down(self, keys: list[int]) -> list[int]:
        """Each of these made a token; who has made all of them is over."""
        over = []
        for key in keys:
            self._left[key] -= 1
            if not self._left[key]:
                del self._left[key]
                over.append(key)
        return over


class EmbeddedScheduler(OurScheduler):
    """The same, as a program pays for it that embeds the scheduler and drives it through the public names alone.

    It asks whether there is room, has its sampled tokens as a list, and sends the results over the wire as well.
    """

    name = "tokenspeed, embedded"

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
        begin = clock()
        if not self._scheduler.has_room:
            raise RuntimeError("the round before is still out")
        plan = self._scheduler.next_plan()
        planned = clock()
        plan = decode_plan(encode_plan(plan))
        rows = read_plan(plan)
        assert rows is not None, "a decode round without a batch"
        assert plan.forward is not None
        read = clock()
        sampled = [SAMPLED_TOKEN] * rows.count
        result = ExtendResult(plan.round, plan.forward.keys, pack([1] * rows.count), pack(sampled))
        self._scheduler.advance(decode_events(encode_events([result])))
        end = clock()
        return RoundTimes(plan=planned - begin, read=read - planned, advance=end - read)


class RecordedScheduler(OurScheduler):
    """The same with everything that went in and came out written to a file."""

    name = "tokenspeed, recorded"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._folder = TemporaryDirectory(prefix="bench-recording-")
        writer = TraceWriter(Path(self._folder.name) / "run.rounds", config)
        self._scheduler = RecordingScheduler(Scheduler(config), writer)


def read_plan(plan: ExecutionPlan) -> Rows | None:
    """Every column that the data plane looks at, as arrays; None: the plan has no batch."""
    for blocks in plan.zero:
        view(blocks.blocks)
    for edit in plan.tables:
        view(edit.blocks)
    return Rows(plan.forward) if plan.forward is not None else None
