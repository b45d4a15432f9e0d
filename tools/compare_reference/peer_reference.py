"""The C++ reference scheduler behind the words of the comparison."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenspeed_scheduler as ts

from control_plane import SchedulerConfig
from tools.bench.reference import reference_config
from tools.compare_reference.round_view import ExtendRow, RoundView

TOKEN = 7


class Reference:
    """The C++ scheduler. Rounds are numbered by whoever drives it, so that acknowledgements find theirs."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = ts.Scheduler(reference_config(config))
        self._groups = [group.id for group in config.groups]
        self._counts_available = all(group.packing == 1 for group in config.groups)
        self._batches: dict[int, Any] = {}
        self._stores: dict[int, list[int]] = {}
        self._loads: dict[int, list[int]] = {}

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int | None) -> None:
        """One request; its undeclared output is 0 here."""
        spec = ts.RequestSpec()
        spec.request_id = name
        spec.tokens = list(tokens)
        spec.max_new_tokens = max_new_tokens or 0
        self.scheduler.submit_requests([spec])

    def plan(self, number: int) -> RoundView:
        """The next round. A second one of the same number is executed together with the first."""
        plan = self.scheduler.next_execution_plan()
        batch = plan.forward[0] if plan.forward and plan.forward[0].request_ids else None
        if batch is not None:
            self._batches[number] = batch
        stored, given_away, loaded = self._copies(plan, number)
        fresh = plan.pages_to_zero_arrays()
        return RoundView(
            extends=_extends(batch),
            decodes=tuple(batch.request_ids[batch.num_extends() :]) if batch else (),
            remote_prefills=tuple((row.name, row.first, row.end) for row in _extends(plan.remote_prefill)),
            remote_decodes=tuple(plan.remote_decode.request_ids) if plan.remote_decode else (),
            new_blocks=tuple(len(fresh[group]) if group in fresh else 0 for group in self._groups),
            stored=stored,
            given_away=given_away,
            loaded=loaded,
            waiting=self.scheduler.waiting_size() + self.scheduler.bootstrapping_size(),
            available=self.scheduler.available_lcm_blocks() if self._counts_available else None,
        )

    def boot(self, name: str) -> None:
        """The peer knows of a request."""
        self._tell([ts.PD.BootstrappedEvent(name)])

    def land(self, number: int, accepted: Mapping[str, int], finish: Sequence[str], abort: Sequence[str]) -> None:
        """A round's forward and load-backs are over, decodes with so many tokens; then some finish, others leave."""
        events = [ts.Cache.LoadBackDoneEvent(op, True) for op in self._loads.pop(number, ())]
        batch = self._batches.pop(number, None)
        for row, name in enumerate(batch.request_ids if batch else ()):
            result = ts.ForwardEvent.ExtendResult()
            result.request_id = name
            if row < batch.num_extends():
                end = batch.extend_prefix_lens[row] + batch.input_lengths[row]
                result.tokens = [TOKEN] * (end >= batch.prefill_lengths[row])
            else:
                result.tokens = [TOKEN] * accepted[name]
            events.append(result)
        self._tell([*events, *_endings(ts.ForwardEvent.Finish, finish), *_endings(ts.ForwardEvent.Abort, abort)])

    def end_stores(self, number: int) -> None:
        """The stores of a round are acknowledged."""
        events = []
        for op in self._stores.pop(number, ()):
            done = ts.Cache.WriteBackDoneEvent()
            done.op_id = op
            events.append(done)
        self._tell(events)

    def end_remote_prefill(self, name: str, *, finishes: bool) -> None:
        """The peer wrote a prompt's pages and sampled its first token."""
        self._tell([ts.PD.RemotePrefillDoneEvent(name, TOKEN)])
        if finishes:
            self._tell(_endings(ts.ForwardEvent.Finish, [name]))

    def end_remote_decode(self, name: str) -> None:
        """The peer has a prompt's pages."""
        self._tell([ts.PD.SucceededEvent(name)])

    def fail_transfer(self, name: str) -> None:
        """The peer gives up."""
        self._tell([ts.PD.FailedEvent(name)])

    def _copies(self, plan: Any, number: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        stored, given_away, loaded = ([0] * len(self._groups) for _ in range(3))
        for batch in plan.cache:
            is_store = isinstance(batch, ts.Cache.WriteBackOp)
            ops = self._stores if is_store else self._loads
            ops.setdefault(number, []).extend(batch.op_ids)
            for index, groups in enumerate(batch.group_ids):
                blocks = loaded
                if is_store:
                    blocks = stored if batch.source_pinned[index] else given_away
                for group in groups:
                    blocks[group] += 1
        return tuple(stored), tuple(given_away), tuple(loaded)

    def _tell(self, events: Sequence[Any]) -> None:
        if events:
            event = ts.ExecutionEvent()
            for each in events:
                event.add_event(each)
            self.scheduler.advance(event)


def _extends(batch: Any) -> tuple[ExtendRow, ...]:
    rows = []
    for row in range(batch.num_extends() if batch else 0):
        begin, replayed = batch.extend_prefix_lens[row], batch.extend_replay_lens[row]
        end = begin + batch.input_lengths[row]
        rows.append(ExtendRow(batch.request_ids[row], begin + replayed, end, replayed, batch.prefill_lengths[row]))
    return tuple(rows)


def _endings(kind: Any, names: Iterable[str]) -> list[Any]:
    events = []
    for name in names:
        ending = kind()
        ending.request_id = name
        events.append(ending)
    return events
