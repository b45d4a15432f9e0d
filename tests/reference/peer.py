"""Drives the C++ reference scheduler and ours with the same program, and says each round in the same words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenspeed_scheduler as ts
from msgspec import Struct

from control_plane import Scheduler, SchedulerConfig
from control_plane.messages import Abort, Event, ExecutionPlan, ExtendResult, Finish, RequestSpec
from control_plane.messages.columns import count, pack, view
from tests.reference.peer_reference import reference_config

TOKEN = 7


class RoundView(Struct, frozen=True):
    """What a round does, apart from which slot and block it does it with."""

    extends: tuple[tuple[str, int, int, int], ...]  # id, first token computed, end, tokens re-fed before it
    decodes: tuple[str, ...]
    new_blocks: tuple[int, ...]  # by group


class Ours:
    """Our scheduler behind the words of the comparison."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self._names: dict[int, str] = {}
        self._keys: dict[str, int] = {}
        self._out: list[ExecutionPlan] = []
        self._rows: dict[tuple[int, int], int] = {}
        self.has_replaced = False

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int | None) -> None:
        """One request."""
        (key,) = self.scheduler.submit([RequestSpec(name, pack(tokens), max_new_tokens)])
        self._names[key] = name
        self._keys[name] = key

    def plan(self) -> RoundView | None:
        """The next round; None: nothing to do."""
        plan = self.scheduler.next_plan()
        batch = plan.forward
        if batch is None:
            return None
        self._out.append(plan)
        self._watch(plan)
        names = [self._names[key] for key in view(batch.keys).tolist()]
        rows = zip(
            names,
            view(batch.prefix_lengths).tolist(),
            view(batch.input_lengths).tolist(),
            view(batch.replay_lengths).tolist(),
            strict=False,
        )
        extends = tuple((name, begin + replay, begin + length, replay) for name, begin, length, replay in rows)
        fresh = {each.group: count(each.blocks) for each in plan.zero}
        blocks = tuple(fresh.get(group, 0) for group in range(len(self.scheduler.config.groups)))
        return RoundView(extends, tuple(names[batch.num_extends :]), blocks)

    def land(self, finish: Sequence[str], abort: Sequence[str]) -> None:
        """The oldest round that is out lands; then some finish, others leave."""
        plan = self._out.pop(0)
        batch = plan.forward
        assert batch is not None
        ends = view(batch.prefix_lengths) + view(batch.input_lengths)
        counts = np.ones(batch.row_count, dtype=np.int32)
        counts[: batch.num_extends] = ends[: batch.num_extends] >= view(batch.prefill_lengths)
        tokens = pack([TOKEN] * int(counts.sum()))
        events: list[Event] = [ExtendResult(plan.round, batch.keys, pack(counts), tokens)]
        events += [Finish(self._keys[name]) for name in finish]
        events += [Abort(self._keys[name]) for name in abort]
        self.scheduler.advance(events)

    def _watch(self, plan: ExecutionPlan) -> None:
        """Notice when a block is replaced by the canonical one: an edit inside the rows that are known."""
        for edit in plan.tables:
            row = (edit.slot, edit.group)
            end = edit.first + count(edit.blocks)
            self.has_replaced |= any(edit.blocks) and edit.first < self._rows.get(row, 0)
            self._rows[row] = max(self._rows.get(row, 0), end) if edit.blocks else edit.first


class Reference:
    """The C++ scheduler behind the same words."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = ts.Scheduler(reference_config(config))
        self._groups = [group.id for group in config.groups]
        self._out: list[Any] = []

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int | None) -> None:
        """One request; its undeclared output is 0 here."""
        spec = ts.RequestSpec()
        spec.request_id = name
        spec.tokens = list(tokens)
        spec.max_new_tokens = max_new_tokens or 0
        self.scheduler.submit_requests([spec])

    def plan(self) -> RoundView | None:
        """The next round; None: nothing to do."""
        plan = self.scheduler.next_execution_plan()
        if not plan.forward or not plan.forward[0].request_ids:
            return None
        batch = plan.forward[0]
        self._out.append(batch)
        extends = []
        for row in range(batch.num_extends()):
            begin, replay = batch.extend_prefix_lens[row], batch.extend_replay_lens[row]
            extends.append((batch.request_ids[row], begin + replay, begin + batch.input_lengths[row], replay))
        fresh = plan.pages_to_zero_arrays()
        blocks = tuple(len(fresh[group]) if group in fresh else 0 for group in self._groups)
        return RoundView(tuple(extends), tuple(batch.request_ids[batch.num_extends() :]), blocks)

    def land(self, finish: Sequence[str], abort: Sequence[str]) -> None:
        """The oldest round that is out lands; then some finish, others leave."""
        batch = self._out.pop(0)
        event = ts.ExecutionEvent()
        for row, name in enumerate(batch.request_ids):
            end = batch.extend_prefix_lens[row] + batch.input_lengths[row] if row < batch.num_extends() else 0
            result = ts.ForwardEvent.ExtendResult()
            result.request_id = name
            result.tokens = [] if row < batch.num_extends() and end < batch.prefill_lengths[row] else [TOKEN]
            event.add_event(result)
        for kind, names in ((ts.ForwardEvent.Finish, finish), (ts.ForwardEvent.Abort, abort)):
            for name in names:
                ending = kind()
                ending.request_id = name
                event.add_event(ending)
        self.scheduler.advance(event)
