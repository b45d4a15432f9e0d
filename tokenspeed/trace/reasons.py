"""Why a request is where it is, from the notes of the rounds.

Notes are left where something is decided or changes: a prompt that was refused is not asked again while nothing was
freed, so what it lacked stands until a later note, or until somebody in front of it holds the line.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from control_plane.config import Role, SchedulerConfig
from control_plane.messages import ExecutionPlan, Note, NoteKind
from control_plane.messages.columns import view
from control_plane.rounds.steps import Planned
from tokenspeed.trace.holdings import Holdings
from tokenspeed.trace.life import FEW, Cause, Life, PhaseKind, listed

OWN = (
    NoteKind.BLOCKED,
    NoteKind.NO_SLOT,
    NoteKind.AWAITS_STORE,
    NoteKind.AWAITS_RECOVERY,
    NoteKind.NO_BUDGET,
)
LOSSES = (NoteKind.RETRACTED, NoteKind.ROLLED_BACK, NoteKind.RESTARTED)
ENDS_REMEMBERED = 8


class Reasons:
    """Follows plans beside `Lives` and tells the lives that are watched why they wait, move or come back."""

    def __init__(self, config: SchedulerConfig, live: Mapping[int, Life]) -> None:
        self._config = config
        self._live = live
        self._group_ids = [group.id for group in config.groups]
        self._holdings = Holdings(config.groups)
        self._lacked: dict[int, Cause] = {}
        self._comes_first: dict[int, bool] = {}
        self._ends: deque[tuple[int, str]] = deque(maxlen=ENDS_REMEMBERED)

    def ended(self, life: Life, round_number: int) -> None:
        """A request is over: what it held is to be had."""
        self._lacked.pop(life.key, None)
        self._comes_first.pop(life.key, None)
        if life.is_admitted:
            self._ends.append(
                (round_number, f"{life.name} ended ({life.end.split(':')[0]}) after round {round_number}")
            )

    def loses_pages(self, life: Life, note: Note, step: Planned, *, told_by_device: bool) -> None:
        """A request was thrown out; by whom, for whom, and why this one."""
        numbers = note.numbers
        comes_first = False
        match note.kind:
            case NoteKind.RETRACTED:
                text = self._retracted(life, numbers)
                comes_first = bool(numbers[8])
                self._ends.append((step.round, f"{life.name} was retracted in round {step.plan.round}"))
            case NoteKind.RESTARTED:
                text = f"begins again: what it holds lies scattered over parents that it needs ({numbers[1]} blocks)"
                comes_first = True
            case _ if told_by_device:
                text = f"the device could not fill its pages; {numbers[0]} tokens are computed again"
            case _:
                text = f"it read pages that were never written; {numbers[0]} tokens are computed again"
        self._comes_first[life.key] = comes_first
        life.because(step.round, step.time_us, Cause(text, f"{note.kind} {step.plan.round}"))

    def planned(self, step: Planned, watched: Sequence[Life]) -> None:
        """A round was planned: tell those who are watched what it was to them."""
        plan = step.plan
        self._holdings.planned(plan)
        notes: dict[int, list[Note]] = {}
        for note in plan.notes:
            notes.setdefault(note.key, []).append(note)
        scheduled = set(_scheduled(plan))
        for life in watched:
            own = notes.get(life.key, [])
            if life.key in scheduled:
                causes = self._moves(life, own, plan)
                self._lacked.pop(life.key, None)
                life.phase.standing = ()
            elif any(note.kind in LOSSES for note in own):
                continue  # that was told; what it asked for before is no matter any more
            else:
                causes = self._waits(life, own, plan)
            if causes:
                life.because(step.round, step.time_us, *causes)

    def _waits(self, life: Life, own: Sequence[Note], plan: ExecutionPlan) -> list[Cause]:
        if not plan.has_work and not plan.notes:
            return []
        cause = self._why_not(life, own, plan)
        return [*([] if cause is None else [cause]), *self._deferred(own, plan)]

    def _moves(self, life: Life, own: Sequence[Note], plan: ExecutionPlan) -> list[Cause]:
        """What an admission brought."""
        if not any(binding.key == life.key for binding in plan.bindings):
            return []
        noted = {note.kind: note.numbers for note in own}
        hit, from_host = noted.get(NoteKind.HIT, (0, 0))
        found = f"{hit} tokens cached ({hit - from_host} on the device, {from_host} on the host)" if hit else ""
        parts = [found or "nothing cached"]
        if NoteKind.LOADED in noted:
            parts.append(f"loads {noted[NoteKind.LOADED][0]} blocks from the host")
        brought = ", ".join(parts)
        since = min((phase.begin_round for phase in life.waiting_phases), default=0)
        mine = f"{life.name} "
        freed = [text for round_number, text in self._ends if round_number >= since and not text.startswith(mine)]
        why = f", since {listed(freed[::-1])}" if freed else ""
        if NoteKind.READMITTED in noted:
            available, _ = noted[NoteKind.READMITTED]
            return [Cause(f"comes back: {available} blocks could be had{why}; {brought}", f"readmitted {plan.round}")]
        return [Cause(f"admitted{why if life.key in self._lacked else ''}: {brought}", f"admitted {plan.round}")]

    def _why_not(self, life: Life, own: Sequence[Note], plan: ExecutionPlan) -> Cause | None:
        """Why somebody who is not over has no row in this batch; None: nothing new is known."""
        for note in own:
            if note.kind in OWN:
                cause = self._own(note, plan)
                if note.kind is NoteKind.BLOCKED:
                    self._lacked[life.key] = cause
                return cause
        if life.is_waiting:
            if life.phase.kind is PhaseKind.AWAITS_PEER:
                return Cause("its peer has not answered yet", "peer")
            if self._comes_first.get(life.key):
                return self._behind_readmission(life, plan) or self._lacked.get(life.key)
            return self._in_front(life, plan) or self._lacked.get(life.key)
        if life.phase.kind is PhaseKind.PREFILLING:
            return self._line_held(life, plan)
        if life.phase.kind is PhaseKind.DECODING:
            return self._left_out(plan)
        return None

    def _own(self, note: Note, plan: ExecutionPlan) -> Cause:
        numbers = note.numbers
        match note.kind:
            case NoteKind.BLOCKED:
                group, wanted, available = numbers
                holders = self._holders(group)
                text = (
                    f"group {self._group_ids[group]} lacked {max(1, wanted - available)} of {wanted} blocks: "
                    f"{available} could be had; {holders}"
                )
                return Cause(text, f"blocked {group}")
            case NoteKind.NO_SLOT:
                names = [self._name(key) for key in self._holdings.owner_of_slot.values() if key in self._live]
                return Cause(f"all {numbers[0]} slots are taken, by {listed(names)}", "slots")
            case NoteKind.AWAITS_STORE:
                return Cause("its pages are on their way to the host: it waits for the acknowledgement", "store")
            case NoteKind.AWAITS_RECOVERY:
                name = self._name(numbers[0])
                return Cause(f"{name} was retracted and comes back before new prompts", f"recovery {numbers[0]}")
            case _:
                return Cause(self._budget_spent(numbers[0], plan), "budget")

    def _in_front(self, life: Life, plan: ExecutionPlan) -> Cause | None:
        """What stops everybody behind somebody else in this round."""
        held = self._line_held(life, plan)
        if held is not None:
            return held
        for note in plan.notes:
            if note.key >= life.key and note.kind is not NoteKind.AWAITS_RECOVERY:
                continue
            if note.kind is NoteKind.SEALED:
                text = f"{note.numbers[0]} prompts passed {self._name(note.key)}: nobody passes it any more"
                return Cause(text, f"sealed {note.key}")
            if note.kind in (NoteKind.NO_SLOT, NoteKind.AWAITS_RECOVERY, NoteKind.NO_BUDGET):
                return self._own(note, plan)
        return None

    def _line_held(self, life: Life, plan: ExecutionPlan) -> Cause | None:
        for note in plan.notes:
            if note.kind is NoteKind.LINE_HELD and note.key != life.key:
                text = f"behind the incomplete prefill of {self._name(note.key)}, {note.numbers[0]} tokens to go"
                return Cause(text, f"line {note.key}")
            holder = self._live.get(note.key)
            is_resident = holder is not None and holder.phase.kind is PhaseKind.PREFILLING
            if is_resident and note.key != life.key and note.kind is NoteKind.BLOCKED:
                text = f"behind the incomplete prefill of {self._name(note.key)}, which lacks blocks"
                return Cause(text, f"line {note.key} lacks")
        return None

    def _behind_readmission(self, life: Life, plan: ExecutionPlan) -> Cause | None:
        """One comes back at a time (R7.1)."""
        for note in plan.notes:
            other = self._live.get(note.key)
            if other is None or other is life or not other.retractions:
                continue
            if note.kind in (NoteKind.LINE_HELD, NoteKind.READMITTED, NoteKind.BLOCKED, NoteKind.AWAITS_STORE):
                return Cause(f"{other.name} comes back first, one at a time", f"readmission {note.key}")
        return None

    def _left_out(self, plan: ExecutionPlan) -> Cause | None:
        """A decode without a row: prefills that share a round with nobody have it to themselves (R6.F, R6.D)."""
        batch = plan.forward
        is_mixed = self._config.mixed and self._config.role is Role.FUSED
        if is_mixed or batch is None or batch.num_extends != batch.row_count:
            return None
        names = [self._name(key) for key in view(batch.keys).tolist()]
        return Cause(f"prefills have the round to themselves: {listed(names)}", "unmixed")

    def _deferred(self, own: Sequence[Note], plan: ExecutionPlan) -> list[Cause]:
        """The first who is blocked is told why nobody gives way for it yet (R5.4)."""
        first = next((note.key for note in plan.notes if note.kind is NoteKind.BLOCKED), None)
        if first is None or all(note.key != first for note in own):
            return []
        causes = []
        for note in plan.notes:
            if note.kind is not NoteKind.DEFERRED:
                continue
            if note.key:
                text = f"nobody gives way before the forward of {self._name(note.key)} has landed"
            else:
                loads, stores, _ = note.numbers
                text = f"nobody gives way while copies are out: {loads} loads, {stores} stores that hold blocks"
            causes.append(Cause(text, f"deferred {note.key}"))
        return causes

    def _retracted(self, life: Life, numbers: tuple[int, ...]) -> str:
        _, given_back, _, served, candidates, spared, was_prefilling, is_last_resort, comes_first = numbers
        served_whom = "itself, which found no block" if served == life.key else self._name(served)
        chosen = (
            f"it gives back most of {candidates} that could give way" if candidates > 1 else "no other could give way"
        )
        if was_prefilling:
            chosen = f"an incomplete prefill goes first, of {candidates} that could give way"
        if is_last_resort:
            chosen += ", as the last resort"
        spared_text = f"; {spared} spared, whose whole output is secured" if spared else ""
        back = "comes back before new prompts" if comes_first else "waits like a new prompt"
        return f"retracted for {served_whom}, {given_back} blocks given back: {chosen}{spared_text}; {back}"

    def _budget_spent(self, left: int, plan: ExecutionPlan) -> str:
        batch = plan.forward
        budget = self._config.max_scheduled_tokens
        if batch is None:
            return f"{left} of the round's {budget} tokens were left"
        fed = view(batch.input_lengths)[: batch.num_extends].tolist()
        parts = [
            f"{tokens} by {self._name(key)}"
            for key, tokens in zip(view(batch.keys)[: batch.num_extends].tolist(), fed, strict=True)
        ]
        decodes = batch.row_count - batch.num_extends
        if decodes:
            parts.insert(0, f"{decodes * batch.decode_width} by {decodes} decodes")
        return f"the round's {budget} tokens were spent, {left} were left: {listed(parts)}"

    def _holders(self, group: int) -> str:
        held = [(self._name(key), blocks) for key, blocks in self._holdings.holders(group) if key in self._live]
        if not held:
            return "no request holds any"
        shown = ", ".join(f"{name} {blocks}" for name, blocks in held[:FEW])
        rest = held[FEW:]
        others = f" and {len(rest)} others {sum(blocks for _, blocks in rest)}" if rest else ""
        return f"held by {shown}{others}"

    def _name(self, key: int) -> str:
        life = self._live.get(key)
        return life.name if life is not None else f"request {key}"


def _scheduled(plan: ExecutionPlan) -> list[int]:
    """Whoever has a row in the batch or pages on their way to or from a peer."""
    works = (plan.forward, plan.remote_prefill, plan.remote_decode)
    return [key for work in works if work is not None for key in view(work.keys).tolist()]
