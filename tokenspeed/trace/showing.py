"""What the trace commands share on the terminal: progress on standard error, results on standard output."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from control_plane.rounds.steps import Recording
from control_plane.rounds.trace import Damage
from tokenspeed.terminal import said

STEPS_PER_UPDATE = 64


@contextmanager
def bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar on a terminal, nothing elsewhere. The callable is told how much is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=said, transient=True, disable=not said.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def reading(recording: Recording, what: str = "reading") -> Iterator[Callable[[], None]]:
    """A progress bar over the bytes of a recording; to be called with every step."""
    with bar(what, recording.total_bytes) as update:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            if steps % STEPS_PER_UPDATE == 0:
                update(recording.bytes_read)

        yield step


def dump(value: Any) -> str:
    """JSON for programs, that people can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def say_damage(damage: Damage | None) -> None:
    """Where a recording could not be read any further, if anywhere."""
    if damage is not None:
        said.print(damage.render(), style="red", markup=False)
