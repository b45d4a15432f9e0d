"""A plan under construction: budgets, who is scheduled, what was pushed.

Role grammars and phases hold it; the admission layer sees only its `output` (fresh blocks and notes).
"""

from msgspec import Struct

from control_plane.cache.coordinator.demand import Granted
from control_plane.cache.core.block_table import BlockTables
from control_plane.fsm.request import Request
from control_plane.fsm.tokens import Window
from control_plane.messages import (
    BlockList,
    ExecutionPlan,
    ForwardBatch,
    LoadBack,
    Note,
    NoteKind,
    RemoteWork,
    SlotBinding,
    Store,
)
from control_plane.messages.columns import pack, repeat


class Extend(Struct, frozen=True):
    """A chunk of a prompt joins the batch."""

    request: Request
    slot: int
    window: Window
    checkpoint: int

    @property
    def first_fed(self) -> int:
        """Position of the first token that the forward is given."""
        return self.window.begin - self.window.replay_tokens

    @property
    def fed_tokens(self) -> int:
        """How many tokens the forward is given."""
        return self.window.end - self.first_fed


class Decodes(Struct, frozen=True):
    """Decode steps join the batch, as columns: their keys, slots, and the position of the token that each feeds."""

    keys: bytes
    slots: bytes
    positions: bytes
    row_count: int


def decode_batch(rows: Decodes, decode_width: int) -> ForwardBatch:
    """The batch of a round that only decodes."""
    lengths = repeat(decode_width, rows.row_count)
    return ForwardBatch(rows.keys, rows.slots, 0, lengths, rows.positions, b"", b"", b"", b"", decode_width)


class RemotePrompt(Struct, frozen=True):
    """A peer writes the pages of a prompt, beside the batch: no token of it is fed here."""

    request: Request
    slot: int
    window: Window


class HandOver(Struct, frozen=True):
    """A peer reads the pages of a completed prompt, and goes on from its first token."""

    request: Request
    slot: int
    first_token: int


Operation = Extend | Decodes | RemotePrompt | HandOver


class PlanOutput:
    """What admissions leave in the plan: copies, blocks to zero, new slot owners, notes."""

    def __init__(self, *, groups: int) -> None:
        self.stores: list[Store] = []
        self.load_backs: list[LoadBack] = []
        self.notes: list[Note] = []
        self.bindings: list[SlotBinding] = []
        self._fresh: list[list[int]] = [[] for _ in range(groups)]

    def note(self, kind: NoteKind, key: int, *numbers: int) -> None:
        """Leave a mark of a decision."""
        self.notes.append(Note(kind, key, numbers))

    def record_grant(self, granted: Granted) -> None:
        """Fresh blocks are zeroed before anybody reads them; those that a load-back fills are not."""
        for fresh, blocks in zip(self._fresh, granted.fresh, strict=True):
            fresh += blocks
        self.load_backs += granted.load_backs
        for group, evicted in enumerate(granted.evicted):
            if evicted:
                self.note(NoteKind.EVICTED, 0, group, evicted)

    def blocks_to_zero(self) -> tuple[BlockList, ...]:
        """One list for every group that got blocks."""
        return tuple(BlockList(group, pack(blocks)) for group, blocks in enumerate(self._fresh) if blocks)


class PlanBuild:
    """One round's plan while the phases run. `budget_tokens` is what is left of the round's."""

    def __init__(self, *, round_number: int, budget_tokens: int, decode_width: int, groups: int) -> None:
        self.round_number = round_number
        self.budget_tokens = budget_tokens
        self.output = PlanOutput(groups=groups)
        self.extends: list[Extend] = []
        self.decodes: list[Decodes] = []
        self.remote_prompts: list[RemotePrompt] = []
        self.hand_overs: list[HandOver] = []
        self.retracted: dict[int, None] = {}  # keys: who was thrown out in this round gets nothing in it
        self.decode_width = decode_width

    @property
    def has_prefill_progress(self) -> bool:
        """Whether a prompt advanced in this round. Decode steps are not progress: they release nothing (R5.1)."""
        return bool(self.extends or self.remote_prompts)

    @property
    def has_batch(self) -> bool:
        """Whether the model has anything to compute."""
        return bool(self.extends or self.decodes)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was pushed."""
        return not (self.has_batch or self.remote_prompts or self.hand_overs)

    def push_operation(self, operation: Operation) -> None:
        """The one gate into the batch: whatever enters debits the budget here."""
        match operation:
            case Extend():
                self.extends.append(operation)
                self.budget_tokens -= operation.fed_tokens
            case Decodes(row_count=row_count):
                self.decodes.append(operation)
                self.budget_tokens -= row_count * self.decode_width
            case RemotePrompt():
                self.remote_prompts.append(operation)
            case HandOver():
                self.hand_overs.append(operation)
        assert self.budget_tokens >= 0, f"round {self.round_number} overdrew its budget by {-self.budget_tokens}"

    def finish(self, tables: BlockTables) -> ExecutionPlan:
        """The plan. One without a batch leaves table edits to a later one: they only release slots."""
        forward = self._batch() if self.has_batch else None
        return ExecutionPlan(
            round=self.round_number,
            stores=tuple(self.output.stores),
            zero=self.output.blocks_to_zero(),
            load_backs=tuple(self.output.load_backs),
            tables=() if self.is_empty else tables.drain_edits(),
            bindings=tuple(self.output.bindings),
            remote_prefill=self._remote_prefill(),
            remote_decode=self._remote_decode(),
            forward=forward,
            notes=tuple(self.output.notes),
        )

    def _remote_prefill(self) -> RemoteWork | None:
        work = self.remote_prompts
        if not work:
            return None
        return RemoteWork(
            keys=pack([each.request.key for each in work]),
            slots=pack([each.slot for each in work]),
            begins=pack([each.window.begin for each in work]),
            ends=pack([each.window.end for each in work]),
            attempts=pack([each.request.retraction_count for each in work]),
        )

    def _remote_decode(self) -> RemoteWork | None:
        work = self.hand_overs
        if not work:
            return None
        return RemoteWork(
            keys=pack([each.request.key for each in work]),
            slots=pack([each.slot for each in work]),
            begins=pack([0] * len(work)),
            ends=pack([each.request.prefill_tokens for each in work]),
            attempts=pack([each.request.retraction_count for each in work]),
            tokens=pack([each.first_token for each in work]),
        )

    def _batch(self) -> ForwardBatch:
        extends, decodes = self.extends, self.decodes
        decode_rows = sum(each.row_count for each in decodes)
        if not extends and len(decodes) == 1:
            return decode_batch(decodes[0], self.decode_width)
        return ForwardBatch(
            keys=pack([e.request.key for e in extends]) + b"".join(d.keys for d in decodes),
            slots=pack([e.slot for e in extends]) + b"".join(d.slots for d in decodes),
            num_extends=len(extends),
            input_lengths=pack([e.fed_tokens for e in extends]) + repeat(self.decode_width, decode_rows),
            prefix_lengths=pack([e.first_fed for e in extends]) + b"".join(d.positions for d in decodes),
            prefill_lengths=pack([e.request.prefill_tokens for e in extends]),
            replay_lengths=pack([e.window.replay_tokens for e in extends]),
            checkpoints=pack([e.checkpoint for e in extends]),
            input_ids=b"".join(pack(e.request.tokens[e.first_fed : e.window.end]) for e in extends),
            decode_width=self.decode_width,
        )
