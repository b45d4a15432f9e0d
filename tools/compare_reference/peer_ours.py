"""Our scheduler behind the words of the comparison."""

from collections.abc import Mapping, Sequence

import numpy as np

from control_plane import Scheduler, SchedulerConfig
from control_plane.cache.coordinator.demand import Granted, GroupDemand, Refused
from control_plane.cache.prefix.matcher import PrefixHit, PrefixMatcher
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    ForwardBatch,
    LoadBackDone,
    NoteKind,
    RemotePrefillDone,
    RemoteWork,
    RequestSpec,
    StoreSourceGuard,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import count, pack, view
from tools.compare_reference.round_view import ExtendRow, RoundView

TOKEN = 7


class Ours:
    """Our scheduler. Rounds are numbered by whoever drives it, so that acknowledgements find theirs."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config)
        self.keys: dict[str, int] = {}
        self.last: ExecutionPlan | None = None
        self._names: dict[int, str] = {}
        self._plans: dict[int, ExecutionPlan] = {}
        self._stores: dict[int, list[int]] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self._counts_available = all(group.packing == 1 for group in config.groups)
        self.has_replaced = False
        self.has_mixed_hit = False
        coordinator = self.scheduler._coordinator
        self._device = PrefixMatcher(coordinator.index, config.groups, prefix_granularity=config.prefix_granularity)
        self._admit_first = coordinator.admit_first
        setattr(coordinator, "admit_first", self._watch_hit)  # noqa: B010 (a method is replaced)

    def submit(self, name: str, tokens: Sequence[int], max_new_tokens: int | None) -> None:
        """One request."""
        (key,) = self.scheduler.submit([RequestSpec(name, pack(tokens), max_new_tokens)])
        self._names[key] = name
        self.keys[name] = key

    def plan(self, number: int) -> RoundView:
        """The next round."""
        self.has_mixed_hit = False
        plan = self.last = self.scheduler.next_plan()
        self._watch(plan)
        if plan.has_work:
            self._plans[number] = plan
        if plan.stores:
            self._stores[number] = [store.op for store in plan.stores]
        batch = plan.forward
        pinned = [store for store in plan.stores if store.guard is StoreSourceGuard.PINNED_UNTIL_ACK]
        unpinned = [store for store in plan.stores if store.guard is StoreSourceGuard.STREAM_ORDERED]
        return RoundView(
            extends=self._extends(batch),
            decodes=self.names(view(batch.keys)[batch.num_extends :].tolist()) if batch else (),
            remote_prefills=self._remote_prefills(plan.remote_prefill),
            remote_decodes=self.names(view(plan.remote_decode.keys).tolist()) if plan.remote_decode else (),
            new_blocks=self._by_group([(each.group, each.blocks) for each in plan.zero]),
            stored=self._by_group([(store.group, store.sources) for store in pinned]),
            given_away=self._by_group([(store.group, store.sources) for store in unpinned]),
            loaded=self._by_group([(load.group, load.sources) for load in plan.load_backs]),
            waiting=self.scheduler.stats().waiting,
            available=self.scheduler.admission.available_blocks if self._counts_available else None,
        )

    def boot(self, name: str) -> None:
        """The peer knows of a request."""
        self.scheduler.advance([Bootstrapped(self.keys[name])])

    def land(self, number: int, accepted: Mapping[str, int], finish: Sequence[str], abort: Sequence[str]) -> None:
        """A round's forward and load-backs are over, decodes with so many tokens; then some finish, others leave."""
        plan = self._plans.pop(number)
        events: list[Event] = [LoadBackDone(load.op) for load in plan.load_backs]
        if plan.forward is not None:
            events.append(self._result(plan.round, plan.forward, accepted))
        events += [Finish(self.keys[name]) for name in finish]
        events += [Abort(self.keys[name]) for name in abort]
        self.scheduler.advance(events)

    def end_stores(self, number: int) -> None:
        """The stores of a round are acknowledged."""
        self.scheduler.advance([WriteBackDone(op) for op in self._stores.pop(number, ())])

    def end_remote_prefill(self, name: str, *, finishes: bool) -> None:
        """The peer wrote a prompt's pages and sampled its first token."""
        key = self.keys[name]
        self.scheduler.advance([RemotePrefillDone(key, 0, pack([TOKEN]))])
        if finishes:
            self.scheduler.advance([Finish(key)])

    def end_remote_decode(self, name: str) -> None:
        """The peer has a prompt's pages."""
        self.scheduler.advance([TransferSucceeded(self.keys[name], 0)])

    def fail_transfer(self, name: str) -> None:
        """The peer gives up."""
        self.scheduler.advance([TransferFailed(self.keys[name], 0, "the peer is gone")])

    def names(self, keys: Sequence[int]) -> tuple[str, ...]:
        """Who these keys are."""
        return tuple(self._names[key] for key in keys)

    def noted(self, kind: NoteKind) -> tuple[str, ...]:
        """Of whom the last plan says this."""
        assert self.last is not None
        return self.names([note.key for note in self.last.notes if note.kind is kind and note.key])

    def _extends(self, batch: ForwardBatch | None) -> tuple[ExtendRow, ...]:
        if batch is None:
            return ()
        rows = zip(
            self.names(view(batch.keys)[: batch.num_extends].tolist()),
            view(batch.prefix_lengths).tolist(),
            view(batch.input_lengths).tolist(),
            view(batch.replay_lengths).tolist(),
            view(batch.prefill_lengths).tolist(),
            strict=False,
        )
        return tuple(
            ExtendRow(name, begin + replayed, begin + fed, replayed, prefill)
            for name, begin, fed, replayed, prefill in rows
        )

    def _remote_prefills(self, work: RemoteWork | None) -> tuple[tuple[str, int, int], ...]:
        if work is None:
            return ()
        names = self.names(view(work.keys).tolist())
        return tuple(zip(names, view(work.begins).tolist(), view(work.ends).tolist(), strict=True))

    def _by_group(self, columns: Sequence[tuple[int, bytes]]) -> tuple[int, ...]:
        counts = [0] * len(self.scheduler.config.groups)
        for group, blocks in columns:
            counts[group] += count(blocks)
        return tuple(counts)

    def _watch_hit(self, slot: int, demands: Sequence[GroupDemand], hit: PrefixHit, *, owner: int) -> Granted | Refused:
        """Notice a hit with blocks of the device behind what the device alone would give in all groups."""
        on_device = self._device.match(hit.digests, hit.tokens).tokens
        granted = self._admit_first(slot, demands, hit, owner=owner)
        if isinstance(granted, Granted):
            comes_from_host = any(part.loads for part in hit.groups)
            for part, group in zip(hit.groups, self.scheduler.config.groups, strict=True):
                first = on_device // group.block_granularity - part.first
                self.has_mixed_hit |= any(part.blocks[max(first, 0) :])
                self.has_mixed_hit |= bool(on_device) and comes_from_host and not group.is_prefix_closed
        return granted

    def _watch(self, plan: ExecutionPlan) -> None:
        """Notice when a block is replaced by the canonical one: an edit inside the rows that are known."""
        for edit in plan.tables:
            row = (edit.slot, edit.group)
            end = edit.first + count(edit.blocks)
            self.has_replaced |= any(edit.blocks) and edit.first < self._rows.get(row, 0)
            self._rows[row] = max(self._rows.get(row, 0), end) if edit.blocks else edit.first

    def _result(self, round_number: int, batch: ForwardBatch, accepted: Mapping[str, int]) -> ExtendResult:
        """One token for every chunk that completes its prompt, and what was accepted for every decode."""
        ends = view(batch.prefix_lengths) + view(batch.input_lengths)
        counts = np.ones(batch.row_count, dtype=np.int32)
        counts[: batch.num_extends] = ends[: batch.num_extends] >= view(batch.prefill_lengths)
        names = self.names(view(batch.keys)[batch.num_extends :].tolist())
        counts[batch.num_extends :] = [accepted[name] for name in names]
        return ExtendResult(round_number, batch.keys, pack(counts), pack([TOKEN] * int(counts.sum())))
