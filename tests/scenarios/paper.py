"""A data plane on paper: what every row of every block holds in both tiers, followed from plans and reports.

A row holds a stamp that stands for the whole prefix it was computed from. Whatever is read must hold the stamp that its
reader needs, or the reader's result must not count; whatever is stored must be computed, and be what its name says.
"""

from collections.abc import Iterator, Sequence

from control_plane import CacheGroupConfig, GroupKind
from control_plane.cache.tier.host_tier import HostTier, Name
from control_plane.messages import (
    Event,
    ExecutionPlan,
    ExtendResult,
    ForwardFailed,
    LoadBack,
    LoadBackDone,
    RemotePrefillDone,
    Retract,
    Store,
    StoreSourceGuard,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import count, view
from control_plane.testing.rounds import Rounds
from control_plane.testing.simulated_device import Script, count_up
from tests.scenarios.stamps import RUBBISH, Stamp, Stamps
from tests.scenarios.work import Work, rows_of, transfers_of

Block = tuple[int, int]
"""(group, block)"""

Tables = list[list[int]]
"""One row of blocks a group."""


class Paper:
    """Follows a story and objects to whatever reads, stores or loads what is not there. Decode width 1."""

    def __init__(self, story: Rounds, *, script: Script = count_up) -> None:
        self._story = story
        self._script = script
        self._stamps: Stamps | None = None
        self._device: dict[Block, list[Stamp]] = {}
        self._host: dict[Block, list[Stamp]] = {}
        self._tables: dict[int, Tables] = {}
        self._names: dict[int, list[Name]] = {}  # store -> what its blocks are said to hold
        self._out: list[ExecutionPlan] = []
        self._stores: dict[int, Store] = {}
        self._loads: dict[int, LoadBack] = {}
        self._peer_writes_to: dict[tuple[int, int], tuple[Work, Tables]] = {}  # by key and attempt
        self._peer_reads_from: dict[tuple[int, int], tuple[Work, Tables]] = {}
        self._withheld: set[tuple[int, int]] = set()  # (round, key)
        self.stores: list[str] = []
        """Every store, in order: `7 stream-ordered 3 full` is one of round 7, of 3 blocks of that group."""
        self.loads: list[str] = []
        """Every load-back, in order: `8 3 full`."""
        story.watch(self)

    def planned(self, plan: ExecutionPlan) -> None:
        """What a plan stores must be there by now, complete: no copy waits for rows that are still computed (D3)."""
        self._out.append(plan)
        if self._stamps is None:
            granularity = self._story.scheduler.config.prefix_granularity
            self._stamps = Stamps(script=self._script, prefix_granularity=granularity)
        self._stamps.follow(list(self._story.scheduler.requests.values()))
        host = self._story.scheduler._coordinator.host
        for store in plan.stores:
            assert isinstance(host, HostTier)
            self._names[store.op] = [piece.name for piece in host._stores[store.op].pieces]
            self._check_store(store, "when it is planned")
            self.stores.append(f"{plan.round} {store.guard} {count(store.sources)} {self._groups[store.group].id}")
        self.loads += [f"{plan.round} {count(load.sources)} {self._groups[load.group].id}" for load in plan.load_backs]

    def landing(self, plan: ExecutionPlan) -> None:
        """Everything of a plan that comes before its forward, in the order of its fields; loads end by themselves."""
        for store in plan.stores:
            self._check_store(store, "when it is executed")
            self._stores[store.op] = store
            for source, destination in _copied(store):
                self._host[store.group, destination] = list(self._device[store.group, source])
        for fresh in plan.zero:
            self._clear(fresh.group, view(fresh.blocks).tolist())
        for load in plan.load_backs:
            self._loads[load.op] = load
            self._clear(load.group, view(load.destinations).tolist())  # who knows how far the copy got
        for edit in plan.tables:
            row = self._tables.setdefault(edit.slot, [[] for _ in self._groups])[edit.group]
            blocks = view(edit.blocks).tolist()
            row += [0] * (edit.first - len(row))
            row[edit.first : edit.first + len(blocks) if blocks else None] = blocks
        for remote, transfers in (
            (plan.remote_prefill, self._peer_writes_to),
            (plan.remote_decode, self._peer_reads_from),
        ):
            for work, attempt in transfers_of(remote):
                transfers[work.key, attempt] = work, [list(table) for table in self._tables[work.slot]]

    def heard(self, events: Sequence[Event]) -> None:
        """The device got as far as these reports say."""
        for event in events:
            match event:
                case Retract(key=key):
                    self._withheld.update((plan.round, key) for plan in self._out)
                case LoadBackDone(op=op, success=success):
                    self._end_load(op, success=success)
                case ExtendResult(round=round_number) | ForwardFailed(round=round_number):
                    self._run_forward(round_number, is_failing=isinstance(event, ForwardFailed))
                case WriteBackDone(op=op, success=success):
                    self._end_store(op, success=success)
                case RemotePrefillDone(key=key, attempt=attempt):
                    self._peer_writes(key, attempt, is_rubbish=False)
                case TransferFailed(key=key, attempt=attempt):
                    self._peer_writes(key, attempt, is_rubbish=True)
                case TransferSucceeded(key=key, attempt=attempt):
                    self._peer_reads(key, attempt)
                case _:
                    continue

    def _run_forward(self, round_number: int, *, is_failing: bool) -> None:
        """Every row reads what it attends to and writes its stamps, or rubbish if it read any."""
        plan = next((plan for plan in self._out if plan.round == round_number), None)
        if plan is None:
            return
        while self._out and self._out[0].round <= round_number:
            del self._out[0]
        void = self._story.scheduler.void_keys(round_number)
        for work in rows_of(plan.forward):
            tables = self._tables[work.slot]
            wrong = list(self._wrong_reads(work, tables))
            counts = work.key in self._story.scheduler.requests and work.key not in void and not is_failing
            assert not (wrong and counts), f"round {round_number}: the result of {work.key} counts, but {wrong[0]}"
            is_rubbish = bool(wrong) or is_failing or (round_number, work.key) in self._withheld
            self._write(work, tables, is_rubbish=is_rubbish)

    def _end_load(self, op: int, *, success: bool) -> None:
        load = self._loads.pop(op, None)
        if load is None:
            return
        for source, destination in _copied(load):
            assert (load.group, source) in self._host, f"load-back {op} reads host block {source}, which holds nothing"
            self._device[load.group, destination] = list(self._host[load.group, source])
        if not success:
            self._clear(load.group, view(load.destinations).tolist())

    def _end_store(self, op: int, *, success: bool) -> None:
        store = self._stores.pop(op, None)
        if store is None:
            return
        if store.guard is StoreSourceGuard.PINNED_UNTIL_ACK:
            self._check_store(store, "until it is acknowledged")
        if not success:
            for block in view(store.destinations).tolist():
                del self._host[store.group, block]

    def _peer_writes(self, key: int, attempt: int, *, is_rubbish: bool) -> None:
        """A peer writes to the blocks that it was told of, whoever has them by now."""
        if (transfer := self._peer_writes_to.pop((key, attempt), None)) is not None:
            self._write(*transfer, is_rubbish=is_rubbish)

    def _peer_reads(self, key: int, attempt: int) -> None:
        if (transfer := self._peer_reads_from.pop((key, attempt), None)) is not None:
            work, tables = transfer
            wrong = list(self._wrong_reads(Work(key, work.slot, work.end, work.end, work.end), tables))
            assert not wrong, f"the peer of {key} reads, but {wrong[0]}"

    def _check_store(self, store: Store, when: str) -> None:
        for block, name in zip(view(store.sources).tolist(), self._names[store.op], strict=True):
            holds, named = self._device.get((store.group, block)), self._content(name)
            assert holds == named, f"store {store.op}: block {block} holds {holds} {when}, its name says {named}"

    def _wrong_reads(self, work: Work, tables: Tables) -> Iterator[str]:
        """What a request that goes on from `work.begin` would read and does not find."""
        for group, spec in enumerate(self._groups):
            if spec.kind is GroupKind.STATE:
                positions = range(work.begin - 1, work.begin) if work.begin else range(0)
            else:
                first = 0 if spec.is_prefix_closed else max(0, work.begin - spec.window + 1)
                positions = range(first, work.first(spec))
            for position in positions:
                row, offset = divmod(position, spec.block_granularity)
                block = tables[group][row] if row < len(tables[group]) else 0
                held = self._device.get((group, block), self._blank(group))
                found = held[0] if spec.kind is GroupKind.STATE else held[offset]
                if found != self._stamp(work.key, position + 1):
                    yield f"token {position} is not in block {block} of group {group}, which holds {held}"

    def _write(self, work: Work, tables: Tables, *, is_rubbish: bool) -> None:
        for group, spec in enumerate(self._groups):
            granularity = spec.block_granularity
            if spec.kind is GroupKind.STATE:
                positions: Sequence[int] = [end - 1 for end in (work.checkpoint, work.end) if end]
            else:
                positions = range(work.first(spec), work.end)
            for position in positions:
                row = position // granularity
                block = tables[group][row] if row < len(tables[group]) else 0
                if block:
                    held = self._device.setdefault((group, block), self._blank(group))
                    offset = 0 if spec.kind is GroupKind.STATE else position % granularity
                    held[offset] = RUBBISH if is_rubbish else self._stamp(work.key, position + 1)

    def _stamp(self, key: int, end: int) -> Stamp:
        assert self._stamps is not None, "nothing was planned yet"
        return self._stamps.of_prefix(key, end)

    def _content(self, name: Name) -> list[Stamp]:
        assert self._stamps is not None, "nothing was planned yet"
        return self._stamps.of_piece(self._groups[name[0]], name)

    def _clear(self, group: int, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._device[group, block] = self._blank(group)

    def _blank(self, group: int) -> list[Stamp]:
        spec = self._groups[group]
        return [RUBBISH] * (1 if spec.kind is GroupKind.STATE else spec.block_granularity)

    @property
    def _groups(self) -> tuple[CacheGroupConfig, ...]:
        return self._story.scheduler.config.groups


def _copied(copy: Store | LoadBack) -> Iterator[tuple[int, int]]:
    return zip(view(copy.sources).tolist(), view(copy.destinations).tolist(), strict=True)
