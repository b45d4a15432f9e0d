"""A seed or a program, run to its end: what came of it, or what went wrong and the rounds before."""

import hashlib
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from msgspec import Struct

from control_plane.rounds.told import told_rounds
from tools.simulate.draw_setting import draw_setting
from tools.simulate.draw_steps import draw_climate, draw_steps
from tools.simulate.engine import Watch
from tools.simulate.program import Program, Setting, Step, Submit
from tools.simulate.violation import Violation
from tools.simulate.world import World

TOLD_ROUNDS = 20


class Failure(Struct, frozen=True):
    """What must not be; it came up in the last of the program's steps or after it.

    `kind` tells one failure from another. `told` are the rounds before, in words.
    """

    kind: str
    message: str
    round: int
    told: tuple[str, ...]


class Figures(Struct, frozen=True):
    """A run in numbers. `ends` counts requests by why they ended; `most_rounds` is the longest life of one."""

    rounds: int
    ends: dict[str, int]
    refused: int
    retractions: int
    most_retractions: int
    most_rounds: int
    stored_blocks: int
    loaded_blocks: int
    cached_tokens: int
    generated_tokens: int


class Outcome(Struct, frozen=True):
    """What came of a run. `digest` is that of all that was told to the scheduler and all that it planned."""

    program: Program
    figures: Figures
    digest: str
    failure: Failure | None


def simulate(seed: int, *, rounds: int, audits_every: int = 1) -> Outcome:
    """Draw from a seed what to run on and what happens, until there were so many rounds; then run on to the end."""
    random = Random(seed)
    setting, climate = draw_setting(random), draw_climate(random)

    def steps(world: World) -> Iterator[Step]:
        for step in islice(draw_steps(random, setting, climate), 20 * rounds):  # all may be refused
            if world.rounds >= rounds:
                return
            if isinstance(step, Submit) or not world.is_idle:
                yield step

    return _run(setting, steps, seed=seed, watch=Watch(audits_every=audits_every))


def run(program: Program, *, watch: Watch | None = None) -> Outcome:
    """Run a program."""
    return _run(program.setting, lambda _: program.steps, seed=program.seed, watch=watch)


def _run(
    setting: Setting, steps: Callable[[World], Iterable[Step]], *, seed: int, watch: Watch | None = None
) -> Outcome:
    with TemporaryDirectory() as folder:
        world = World(setting, Path(folder), watch=watch)
        failure = None
        try:
            world.run(steps(world))
        except Exception as error:
            failure = Failure(_kind(error), _message(error), world.rounds, _told(world))
        digest = hashlib.sha256()
        for engine in world.engines.values():
            digest.update(engine.recording.read_bytes())
    return Outcome(Program(setting, tuple(world.taken), seed), _figures(world), digest.hexdigest(), failure)


def _told(world: World) -> tuple[str, ...]:
    """The last rounds of every engine."""
    lines: list[str] = []
    for role, engine in world.engines.items():
        if len(world.engines) > 1:
            lines.append(f"{role}:")
        lines += deque(told_rounds(engine.recording), maxlen=TOLD_ROUNDS)
    return tuple(lines)


def _kind(error: Exception) -> str:
    """What was violated; or what was raised, and where."""
    if isinstance(error, Violation):
        return error.kind
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}"


def _message(error: Exception) -> str:
    """What a check found says it all; where something was raised must be said beside."""
    if isinstance(error, Violation):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _figures(world: World) -> Figures:
    stories = world.stories
    stats = [engine.scheduler.stats() for engine in world.engines.values()]
    return Figures(
        rounds=world.rounds,
        ends=dict(sorted(Counter(story.reason or "live" for story in stories).items())),
        refused=world.refused,
        retractions=sum(each.retractions for each in stats),
        most_retractions=max((story.request.retraction_count for story in stories), default=0),
        most_rounds=max((story.ended_round - story.submitted_round for story in stories), default=0),
        stored_blocks=sum(each.stored_blocks for each in stats),
        loaded_blocks=sum(each.loaded_blocks for each in stats),
        cached_tokens=sum(each.cached_tokens for each in stats),
        generated_tokens=sum(each.generated_tokens for each in stats),
    )
