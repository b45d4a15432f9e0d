"""A round in one line, as people read it: `3 | prefill c[9216:10240) d[0:64) | decode a b | hit d 64 | waits e`.

`e blocked 4 of 2`: it asked for 4 blocks when 2 could be had.
"""

from collections.abc import Sequence

from control_plane.messages import (
    Abort,
    Event,
    ExecutionPlan,
    Finish,
    ForwardFailed,
    Note,
    NoteKind,
    RemoteWork,
    RequestSpec,
    Retract,
    TransferFailed,
)
from control_plane.messages.columns import view


class Narrator:
    """Follows a run, live or recorded, and says each round in one line. Names requests by their callers' ids."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._live: dict[int, None] = {}
        self._waiting: dict[int, None] = {}
        self._keys_of_round: dict[int, list[int]] = {}

    def submitted(self, keys: Sequence[int], specs: Sequence[RequestSpec]) -> None:
        """Requests entered."""
        for key, spec in zip(keys, specs, strict=True):
            self._names[key] = spec.id
            self._live[key] = self._waiting[key] = None

    def known(self, key: int, name: str, *, waits: bool) -> None:
        """A request that was there before the story begins."""
        self._names[key] = name
        self._live[key] = None
        if waits:
            self._waiting[key] = None

    def happened(self, events: Sequence[Event]) -> None:
        """Facts arrived; those that end or retract a request change who waits."""
        for event in events:
            match event:
                case Finish(key=key) | Abort(key=key) | TransferFailed(key=key):
                    self._ended(key)
                case Retract(key=key) if key in self._live:
                    self._waits_again(key)
                case ForwardFailed(round=round_number):
                    for key in self._keys_of_round.get(round_number, ()):
                        self._ended(key)
                case _:
                    continue  # nobody begins or ceases to wait

    def planned(self, plan: ExecutionPlan) -> str:
        """The line of a round."""
        parts = [str(plan.round) if plan.has_work else "-"]
        batch = plan.forward
        if batch is not None:
            keys, begins, lengths = (view(c).tolist() for c in (batch.keys, batch.prefix_lengths, batch.input_lengths))
            self._keys_of_round[plan.round] = keys
            self._keys_of_round.pop(plan.round - 3, None)  # deeper overlap than any scheduler's
            replays = view(batch.replay_lengths).tolist()
            chunks = [
                f"{self._name(key)}[{begin + replay}:{begin + length})" + f" replaying {replay}" * bool(replay)
                for key, begin, length, replay in zip(keys, begins, lengths, replays, strict=False)
            ]
            decodes = [self._name(key) for key in keys[batch.num_extends :]]
            if chunks:
                parts.append("prefill " + " ".join(chunks))
            if decodes:
                parts.append("decode " + " ".join(decodes))
        if plan.remote_prefill is not None:
            parts.append("peer prefills " + " ".join(self._remote(plan.remote_prefill)))
        if plan.remote_decode is not None:
            parts.append("hands over " + " ".join(self._remote(plan.remote_decode)))
        for note in plan.notes:
            if note.kind in (NoteKind.RETRACTED, NoteKind.ROLLED_BACK):
                self._waits_again(note.key)
        if batch is not None:
            for key in keys:
                self._waiting.pop(key, None)
        parts += filter(None, map(self._note, plan.notes))
        if self._waiting:
            parts.append("waits " + " ".join(self._name(key) for key in self._waiting))
        return " | ".join(parts)

    def _remote(self, work: RemoteWork) -> list[str]:
        """Whose pages a peer reads or writes; they wait for nothing here."""
        keys = view(work.keys).tolist()
        for key in keys:
            self._waiting.pop(key, None)
        spans = zip(keys, view(work.begins).tolist(), view(work.ends).tolist(), strict=True)
        return [f"{self._name(key)}[{begin}:{end})" for key, begin, end in spans]

    def _note(self, note: Note) -> str:
        name, numbers = self._name(note.key), note.numbers
        match note.kind:
            case NoteKind.HIT:
                return f"hit {name} {numbers[0]}"
            case NoteKind.BLOCKED:
                return f"{name} blocked {numbers[1]} of {numbers[2]}"
            case NoteKind.LINE_HELD:
                return f"line held by {name}"
            case NoteKind.NO_SLOT:
                return "no slot"
            case NoteKind.SEALED:
                return f"line sealed behind {name}"
            case NoteKind.RETRACTED:
                return f"retracts {name} at {numbers[0]} for {self._name(numbers[3])}"
            case NoteKind.RESTARTED:
                return f"restarts {name} at {numbers[0]}"
            case NoteKind.EVICTED:
                return f"evicts {numbers[1]}"
            case NoteKind.LOADED:
                return f"loads {numbers[0]} for {name}"
            case NoteKind.STORED:
                return f"stores {numbers[0]} of {name}"
            case NoteKind.DEFERRED:
                if note.key:
                    return f"retracts nobody while {name} is out"
                return f"retracts nobody while {numbers[0]} loads and {numbers[1]} stores are out"
            case NoteKind.AWAITS_STORE:
                return f"{name} awaits its store"
            case NoteKind.AWAITS_RECOVERY:
                return f"{self._name(numbers[0])} comes back before {name}"
            case NoteKind.ROLLED_BACK | NoteKind.READMITTED | NoteKind.NO_BUDGET:
                return ""  # to be seen by who is in the batch

    def _name(self, key: int) -> str:
        return self._names.get(key, str(key))

    def _ended(self, key: int) -> None:
        self._live.pop(key, None)
        self._waiting.pop(key, None)

    def _waits_again(self, key: int) -> None:
        self._waiting = dict.fromkeys(sorted([*self._waiting, key]))
