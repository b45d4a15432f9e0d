"""What must hold of every plan and after every round, checked from the outside."""

from collections.abc import Collection

from control_plane.config import CacheGroupConfig, GroupKind
from control_plane.messages import ExecutionPlan
from control_plane.messages.columns import view
from control_plane.scheduler.scheduler import Scheduler


class PlanChecker:
    """Follows the plans as a data plane would, with tables of its own, and objects to any that could not be executed.

    Each request at most once a round; budget and batch kept; every fed row inside blocks that its slot owns; a block
    freshly given is zeroed and is in nobody else's table.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._config = scheduler.config
        self._tables: list[dict[int, list[int]]] = [{} for _ in scheduler.config.groups]
        self._owners: dict[int, int] = {}

    def check(self, plan: ExecutionPlan) -> None:
        """Apply a plan's edits and raise AssertionError naming what is wrong with it."""
        for edit in plan.tables:
            row = self._tables[edit.group].setdefault(edit.slot, [])
            blocks = view(edit.blocks).tolist()
            row += [0] * (edit.first - len(row))
            row[edit.first : edit.first + len(blocks) if blocks else None] = blocks
        for binding in plan.bindings:
            self._owners[binding.slot] = binding.key
        if plan.forward is not None:
            self._check_batch(plan)
        self._check_remote(plan)
        self._check_fresh(plan)
        self._check_loads(plan)

    def _check_batch(self, plan: ExecutionPlan) -> None:
        batch, config = plan.forward, self._config
        assert batch is not None
        keys, slots = view(batch.keys).tolist(), view(batch.slots).tolist()
        lengths, begins = view(batch.input_lengths).tolist(), view(batch.prefix_lengths).tolist()
        assert len(set(keys)) == len(keys), f"round {plan.round} names a request twice: {keys}"
        assert len(keys) <= config.max_batch_size, f"round {plan.round} has {len(keys)} rows"
        assert sum(lengths) <= config.max_scheduled_tokens, f"round {plan.round} feeds {sum(lengths)} tokens"
        assert min(lengths) > 0, f"round {plan.round} has an empty row"
        fed = sum(lengths[: batch.num_extends])
        assert len(view(batch.input_ids)) == fed, f"round {plan.round} lacks input tokens"
        replays, checkpoints = view(batch.replay_lengths).tolist(), view(batch.checkpoints).tolist()
        decodes = [0] * (len(keys) - batch.num_extends)
        rows = zip(keys, slots, begins, lengths, replays + decodes, checkpoints + decodes, strict=True)
        for key, slot, begin, length, replay, checkpoint in rows:
            assert self._owners.get(slot) == key, f"round {plan.round}: slot {slot} is not bound to request {key}"
            assert begin + length <= config.max_context_tokens, f"round {plan.round}: {key} leaves the context"
            for group, spec in enumerate(config.groups):
                table = self._tables[group].get(slot, [])
                for row in _rows_touched(spec, begin=begin, end=begin + length, replay=replay, checkpoint=checkpoint):
                    owned = row < len(table) and table[row]
                    assert owned, f"round {plan.round}: {key} has no block in row {row} of group {spec.id}: {table}"

    def _check_remote(self, plan: ExecutionPlan) -> None:
        """A peer writes, or reads, what the first decode step reads, all of it in blocks that the slot owns."""
        for work in (plan.remote_prefill, plan.remote_decode):
            if work is None:
                continue
            columns = (view(column).tolist() for column in (work.keys, work.slots, work.begins, work.ends))
            for key, slot, begin, end in zip(*columns, strict=True):
                assert self._owners.get(slot) == key, f"round {plan.round}: slot {slot} is not bound to request {key}"
                assert 0 <= begin < end, f"round {plan.round}: nothing of {key} is transferred"
                for group, spec in enumerate(self._config.groups):
                    table = self._tables[group].get(slot, [])
                    for row in _rows_read_after(spec, end):
                        owned = row < len(table) and table[row]
                        assert owned, f"round {plan.round}: {key} has no block in row {row} of group {spec.id}: {table}"

    def _check_loads(self, plan: ExecutionPlan) -> None:
        """A load-back fills blocks that somebody has in a table, and none that is cleared as well."""
        zeroed = {(each.group, block) for each in plan.zero for block in view(each.blocks).tolist()}
        for load in plan.load_backs:
            blocks = view(load.destinations).tolist()
            assert len(blocks) == len(view(load.sources)), f"round {plan.round}: load-back {load.op} is lopsided"
            held = {block for row in self._tables[load.group].values() for block in row}
            for block in blocks:
                assert block in held, f"round {plan.round}: nobody holds block {block} of load-back {load.op}"
                assert (load.group, block) not in zeroed, f"round {plan.round}: block {block} is loaded and cleared"

    def _check_fresh(self, plan: ExecutionPlan) -> None:
        for fresh in plan.zero:
            blocks = view(fresh.blocks).tolist()
            assert len(set(blocks)) == len(blocks), f"round {plan.round} zeroes a block twice"
            assert 0 not in blocks, f"round {plan.round} zeroes the null block"
            holders = [block for row in self._tables[fresh.group].values() for block in row]
            for block in blocks:
                assert holders.count(block) <= 1, f"round {plan.round}: fresh block {block} is shared"


def _rows_touched(spec: CacheGroupConfig, *, begin: int, end: int, replay: int, checkpoint: int) -> Collection[int]:
    """Table rows that a forward over the fed tokens `[begin, end)` reads or writes in one group."""
    g = spec.block_granularity
    computed = begin + replay
    match spec.kind:
        case GroupKind.FULL:
            return range(-(-end // g))
        case GroupKind.SLIDING:
            first = begin if spec.replayable and replay else max(0, computed - spec.window + 1)
            return range(first // g, -(-end // g))
        case GroupKind.STATE:
            return {(position - 1) // g for position in (computed, checkpoint, end) if position}


def _rows_read_after(spec: CacheGroupConfig, end: int) -> range:
    """Table rows that the first step after `end` tokens reads in one group."""
    g = spec.block_granularity
    first = 0 if spec.is_prefix_closed else max(0, end - spec.retention_tokens + 1)
    return range(first // g, -(-end // g))
