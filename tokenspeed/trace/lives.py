"""Follows a recording and tells of every request what became of it, phase by phase.

Nothing is planned again: phases come from who is in a batch and from what was reported; `reasons.py` reads the notes
that the scheduler left of its decisions.
"""

from collections.abc import Callable, Container

from msgspec import Struct, field

from control_plane.config import Role
from control_plane.loop.commit import StopRule
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Event,
    ExecutionPlan,
    ExtendResult,
    Finish,
    ForwardFailed,
    LoadBackDone,
    Note,
    NoteKind,
    RemotePrefillDone,
    RequestSpec,
    Retract,
    TokenLogprobs,
    TransferFailed,
    TransferSucceeded,
    WriteBackDone,
)
from control_plane.messages.columns import view
from control_plane.rounds.frames import NO_TIME
from control_plane.rounds.steps import Happened, Planned, Resumed, Step, Submitted
from control_plane.rounds.trace import LiveRequest, TraceHeader
from tokenspeed.trace.life import Cause, Life, PhaseKind
from tokenspeed.trace.reasons import Reasons

NO_LIMIT = 1 << 40


class _Books(Struct):
    """What is kept of a live request beside its life."""

    rule: StopRule
    prefill_tokens: int
    copies_out: dict[int, None] = field(default_factory=dict)
    void_until: int = 0  # results up to this round are not its own


class Lives:
    """Takes steps in order. `live` has whoever is not over, by key.

    Reasons are kept for the keys in `watch`, if given. `on_end` is told of each request that is over, `on_tokens` of
    tokens that reached one: (life, tokens, time in us), before the life counts them.
    """

    def __init__(
        self,
        header: TraceHeader,
        *,
        watch: Container[int] | None = None,
        on_end: Callable[[Life], None] | None = None,
        on_tokens: Callable[[Life, int, int], None] | None = None,
    ) -> None:
        self._role = header.config.role
        self._watch = watch
        self._on_end = on_end
        self._on_tokens = on_tokens
        self.live: dict[int, Life] = {}
        self.last_round = 0
        self.discarded_tokens = 0  # reported behind a stop rule (J7), or for somebody who was gone
        self._books: dict[int, _Books] = {}
        self._reasons = Reasons(header.config, self.live)
        self._keys_of_round: dict[int, list[int]] = {}
        self._told_to_retract: set[int] = set()

    def take(self, step: Step) -> None:
        """Follow one step."""
        self.last_round = step.round
        match step:
            case Submitted(keys=keys, specs=specs):
                for key, spec in zip(keys, specs, strict=True):
                    self._enters(key, spec, step)
            case Happened(events=events):
                # Whoever gave up reads nothing of what arrives together with that (R2.4).
                for event in sorted(events, key=lambda event: not isinstance(event, Abort)):
                    self._happened(event, step)
            case Planned(plan=plan):
                self._planned(plan, step)
            case Resumed(live=live):
                for request in live:
                    if request.key not in self.live:
                        self._was_there(request, step)

    def _enters(self, key: int, spec: RequestSpec, step: Step) -> None:
        limit = 1 if self._role is Role.PREFILL else spec.max_new_tokens or NO_LIMIT
        rule = StopRule(stop_token_ids=spec.stop_token_ids, max_new_tokens=limit)
        life = Life(key, spec.id, spec.prompt_tokens, spec.max_new_tokens, step.time_us, step.round)
        self._begin(life, rule, is_waiting=True, step=step)

    def _was_there(self, request: LiveRequest, step: Step) -> None:
        life = Life(request.key, request.id, request.prompt_tokens, request.max_new_tokens, NO_TIME, step.round)
        life.is_admitted = not request.waits
        rule = StopRule(stop_token_ids=(), max_new_tokens=NO_LIMIT)
        self._begin(life, rule, is_waiting=request.waits, step=step)

    def _begin(self, life: Life, rule: StopRule, *, is_waiting: bool, step: Step) -> None:
        self.live[life.key] = life
        self._books[life.key] = _Books(rule, life.prompt_tokens)
        kind = PhaseKind.QUEUED if is_waiting else PhaseKind.DECODING
        if self._role is not Role.FUSED and is_waiting:
            kind = PhaseKind.AWAITS_PEER
        life.enter(kind, step.round + 1, step.time_us)

    def _happened(self, event: Event, step: Happened) -> None:
        match event:
            case ExtendResult():
                self._landed(event, step)
            case Finish(key=key, reason=reason):
                if self._role is not Role.PREFILL or reason == "error":
                    self._ends(key, reason.value, step)
            case Abort(key=key):
                self._ends(key, "abort", step)
            case TransferFailed(key=key, message=message):
                if (life := self.live.get(key)) is not None:
                    life.because(step.round, step.time_us, Cause(f"its transfer failed: {message}", "transfer"))
            case ForwardFailed(round=round_number, message=message):
                for key in self._keys_of_round.pop(round_number, ()):
                    if key in self.live and round_number > self._books[key].void_until:
                        self._ends(key, f"error: {message}", step)
            case Retract(key=key):
                self._told_to_retract.add(key)
            case LoadBackDone(op=op) | WriteBackDone(op=op):
                self._copied(op, step)
            case Bootstrapped(key=key):
                if (life := self.live.get(key)) is not None:
                    life.enter(PhaseKind.QUEUED, step.round + 1, step.time_us)
            case RemotePrefillDone(key=key, tokens=tokens):
                if (life := self.live.get(key)) is not None and life.phase.kind is PhaseKind.PEER_PREFILLS:
                    self._tokens(life, view(tokens).tolist(), step)
                    life.enter(PhaseKind.DECODING, step.round + 1, step.time_us)
            case TransferSucceeded(key=key):
                self._ends(key, "transferred", step)
            case TokenLogprobs():
                pass  # Told beside an ExtendResult, which is what moves a life.

    def _landed(self, result: ExtendResult, step: Happened) -> None:
        self._keys_of_round.pop(result.round, None)
        counts, tokens = view(result.counts).tolist(), view(result.tokens).tolist()
        begin = 0
        for key, count in zip(view(result.keys).tolist(), counts, strict=True):
            end = begin + count
            life = self.live.get(key) if count else None
            if life is not None and result.round > self._books[key].void_until:
                self._tokens(life, tokens[begin:end], step)
                if life.phase.kind in (PhaseKind.PREFILLING, PhaseKind.LOADING):
                    life.enter(PhaseKind.DECODING, step.round + 1, step.time_us)
            else:
                self.discarded_tokens += count
            begin = end

    def _tokens(self, life: Life, tokens: list[int], step: Happened) -> None:
        """Tokens reach a request, up to its stop rule; the recording holds what was reported behind it, too."""
        kept, _ = self._books[life.key].rule.cut(tokens)
        self.discarded_tokens += len(tokens) - len(kept)
        if self._on_tokens is not None:
            self._on_tokens(life, len(kept), step.time_us)
        if not life.output_tokens:
            life.first_token_us = step.time_us
        life.last_token_us = step.time_us
        life.output_tokens += len(kept)

    def _copied(self, op: int, step: Happened) -> None:
        for key, books in self._books.items():
            if op not in books.copies_out:
                continue
            del books.copies_out[op]
            life = self.live[key]
            if not books.copies_out and life.phase.kind is PhaseKind.LOADING:
                life.enter(PhaseKind.PREFILLING, step.round + 1, step.time_us)
            elif not books.copies_out and life.phase.kind is PhaseKind.AWAITS_ACK:
                life.enter(PhaseKind.RETRACTED, step.round + 1, step.time_us)
            return

    def _ends(self, key: int, reason: str, step: Step) -> None:
        life = self.live.get(key)
        if life is None:
            return
        life.leave(step.round, step.time_us)
        life.ended_us = step.time_us
        life.end = reason
        self._reasons.ended(life, step.round)
        del self.live[key], self._books[key]
        if self._on_end is not None:
            self._on_end(life)

    def _planned(self, plan: ExecutionPlan, step: Planned) -> None:
        for note in plan.notes:
            self._noted(note, step)
        if plan.remote_prefill is not None:
            for key in view(plan.remote_prefill.keys).tolist():
                self._admitted(key, PhaseKind.PEER_PREFILLS, step)
        if plan.remote_decode is not None:
            for key in view(plan.remote_decode.keys).tolist():
                if (life := self.live.get(key)) is not None:
                    life.enter(PhaseKind.AWAITS_ACK, step.round, step.time_us)
        if (batch := plan.forward) is not None:
            keys = view(batch.keys).tolist()
            self._keys_of_round[plan.round] = keys
            for row, key in enumerate(keys):
                life = self.live.get(key)
                if life is None:
                    continue
                if row >= batch.num_extends:
                    if life.phase.kind is not PhaseKind.DECODING:
                        life.enter(PhaseKind.DECODING, step.round, step.time_us)
                elif life.is_waiting:
                    kind = PhaseKind.LOADING if self._books[key].copies_out else PhaseKind.PREFILLING
                    self._admitted(key, kind, step)
                life.phase.scheduled += 1
        if self._watch is not None:
            self._reasons.planned(step, [life for key, life in self.live.items() if key in self._watch])

    def _admitted(self, key: int, kind: PhaseKind, step: Planned) -> None:
        life = self.live.get(key)
        if life is None:
            return
        if not life.is_admitted:
            life.is_admitted = True
            life.admitted_us = step.time_us
        life.enter(kind, step.round, step.time_us)

    def _noted(self, note: Note, step: Planned) -> None:
        life = self.live.get(note.key)
        if life is None:
            return
        books, numbers = self._books[life.key], note.numbers
        match note.kind:
            case NoteKind.HIT:
                if not life.is_admitted:
                    life.cached_tokens, life.cached_host_tokens = numbers
                else:
                    life.found_again_tokens += numbers[0]
                    life.computed_again_tokens -= numbers[0]
            case NoteKind.READMITTED:
                life.computed_again_tokens += books.prefill_tokens
            case NoteKind.LOADED:
                books.copies_out = dict.fromkeys(numbers[1:])
            case NoteKind.STORED:
                books.copies_out = dict.fromkeys(numbers[1:])
            case NoteKind.RETRACTED | NoteKind.ROLLED_BACK | NoteKind.RESTARTED:
                self._loses_pages(life, note, step)
            case NoteKind.AWAITS_STORE:
                life.enter(PhaseKind.AWAITS_ACK, step.round, step.time_us)
            case _:
                return  # reasons, and no moves

    def _loses_pages(self, life: Life, note: Note, step: Planned) -> None:
        books = self._books[life.key]
        if note.kind is not NoteKind.RESTARTED:
            books.prefill_tokens = note.numbers[0]
            life.output_tokens = note.numbers[0] - life.prompt_tokens
        if note.kind is NoteKind.ROLLED_BACK:
            books.copies_out = {}
        books.void_until = step.round - step.plan.has_work
        life.retractions += 1
        life.enter(PhaseKind.RETRACTED, step.round, step.time_us)
        was_told = life.key in self._told_to_retract
        self._told_to_retract.discard(life.key)
        if self._watch is not None and life.key in self._watch:
            self._reasons.loses_pages(life, note, step, told_by_device=was_told)
