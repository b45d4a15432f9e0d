"""`tokenspeed trace why`: the table of a request's phases."""

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from control_plane.errors import RequestRejected
from control_plane.rounds.frames import NO_TIME
from control_plane.rounds.steps import Recording, Resumed, Step, Submitted
from tokenspeed.trace.life import Life, Phase
from tokenspeed.trace.lives import Lives

NAMES_SHOWN = 5
HEADINGS = ("phase", "rounds", "time", "why")


class _Named(Container[int]):
    """Keys of whoever is called so; filled while the recording is read."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._keys: set[int] = set()
        self._key = int(name[1:]) if name.startswith("#") and name[1:].isdecimal() else None

    def meet(self, key: int, name: str) -> None:
        """Somebody entered, or was there."""
        if name == self._name or key == self._key:
            self._keys.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys


def lives_of(recording: Recording, request: str, *, progress: Callable[[], None] | None = None) -> list[Life]:
    """Every request of this name (`#7`: the one with key 7), in order. Raises RequestRejected if there is none."""
    named = _Named(request)
    found: list[Life] = []

    def ended(life: Life) -> None:
        if life.key in named:
            found.append(life)

    lives = Lives(recording.header, watch=named, on_end=ended)
    names: dict[str, None] = {}
    for step in recording:
        for key, name in _introduced(step):
            named.meet(key, name)
            if len(names) < NAMES_SHOWN:
                names[name] = None
        lives.take(step)
        if progress is not None:
            progress()
    found += [life for life in lives.live.values() if life.key in named]
    if not found:
        shown = ", ".join(names) or "none"
        raise RequestRejected(f"no request {request!r} in the recording; the first are: {shown}", field="request")
    return sorted(found, key=lambda life: life.key)


def _introduced(step: Step) -> list[tuple[int, str]]:
    """Who enters with a step, or is said to have been there."""
    match step:
        case Submitted(keys=keys, specs=specs):
            return [(key, spec.id) for key, spec in zip(keys, specs, strict=True)]
        case Resumed(live=live):
            return [(request.key, request.id) for request in live]
        case _:
            return []


def said_lines(life: Life) -> list[str]:
    """A heading, then the table as lines of text."""
    rows = [HEADINGS, *(row for phase in life.phases for row in _rows(phase, life))]
    rows.append((life.end.split(":")[0] or "not over", f"after {life.phase.end_round}" if life.end else "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip()
        for row in rows
    ]
    return [heading(life), "", *lines]


def heading(life: Life) -> str:
    """Who it is, in numbers."""
    declared = "undeclared" if life.max_new_tokens is None else f"at most {life.max_new_tokens}"
    parts = [
        f"{life.name} (key {life.key}): prompt {life.prompt_tokens} tokens, output {life.output_tokens} ({declared})",
        f"cached {life.cached_tokens} ({life.cached_tokens - life.cached_host_tokens} device, "
        f"{life.cached_host_tokens} host)",
    ]
    if life.retractions:
        parts.append(
            f"retracted {life.retractions} times, {life.found_again_tokens} tokens found again, "
            f"{life.computed_again_tokens} computed again"
        )
    return "; ".join(parts)


def facts(life: Life) -> dict[str, Any]:
    """The same for a program. Times are microseconds since the submission."""
    return {
        "key": life.key,
        "id": life.name,
        "prompt_tokens": life.prompt_tokens,
        "output_tokens": life.output_tokens,
        "cached_tokens": life.cached_tokens,
        "cached_host_tokens": life.cached_host_tokens,
        "retractions": life.retractions,
        "found_again_tokens": life.found_again_tokens,
        "computed_again_tokens": life.computed_again_tokens,
        "end": life.end,
        "phases": [
            {
                "phase": phase.kind.value,
                "begin_round": phase.begin_round,
                "end_round": phase.end_round,
                "begin_us": _since(life, phase.begin_us),
                "duration_us": None if phase.duration_us == NO_TIME else phase.duration_us,
                "scheduled_rounds": phase.scheduled,
                "reasons": [{"round": reason.round, "text": reason.text} for reason in phase.reasons],
            }
            for phase in life.phases
        ],
    }


def _since(life: Life, time_us: int) -> int | None:
    return None if NO_TIME in (time_us, life.submitted_us) else time_us - life.submitted_us


def _rows(phase: Phase, life: Life) -> list[tuple[str, str, str, str]]:
    end_round = phase.end_round if life.end or phase is not life.phase else None
    first = (phase.kind.value, _span(phase, end_round), _time(phase.duration_us))
    reasons = [f"{reason.round}: {reason.text}" for reason in phase.reasons] or [""]
    return [(*first, reasons[0]), *(("", "", "", reason) for reason in reasons[1:])]


def _span(phase: Phase, end_round: int | None) -> str:
    if end_round is None:
        return f"{phase.begin_round}-"
    if end_round < phase.begin_round:
        return "-"
    span = str(phase.begin_round) if end_round == phase.begin_round else f"{phase.begin_round}-{end_round}"
    rounds = end_round - phase.begin_round + 1
    return f"{span} ({phase.scheduled} of {rounds})" if 0 < phase.scheduled < rounds else span


def _time(duration_us: int) -> str:
    if duration_us == NO_TIME:
        return "-"
    return f"{duration_us / 1000:.1f} ms" if duration_us < 10_000_000 else f"{duration_us / 1e6:.1f} s"


def why(path: str | Path, request: str, *, strict: bool = False) -> list[Life]:
    """Every request of this name in a recording."""
    return lives_of(Recording(path, strict=strict), request)
