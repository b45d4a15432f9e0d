"""Makes a failing program short: steps are left out, then made simpler, as long as it fails for the same reason."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from msgspec import structs

from control_plane.errors import ConfigError
from tools.simulate.program import Group, Latency, Peer, Program, Run, Setting, Step, Submit
from tools.simulate.run import Outcome, run

MOST_RUNS = 400

Plain = TypeVar("Plain", Setting, Peer, Submit, Latency, Group)


def shrink(outcome: Outcome, *, most_runs: int = MOST_RUNS, run_program: Callable[[Program], Outcome] = run) -> Outcome:
    """The outcome of the shortest program that was found in so many runs. `outcome` is one with a failure."""
    shrinker = _Shrinker(outcome, most_runs, run_program)
    before = None
    while shrinker.best.program != before and shrinker.runs_left:
        before = shrinker.best.program
        shrinker.leave_out_steps()
        shrinker.simplify_setting()
        shrinker.simplify_steps()
    return shrinker.best


class _Shrinker:
    """Keeps the best failing program so far; every try is a run."""

    def __init__(self, outcome: Outcome, most_runs: int, run_program: Callable[[Program], Outcome]) -> None:
        assert outcome.failure is not None, "this program does not fail"
        self.best = outcome
        self.runs_left = most_runs
        self._kind = outcome.failure.kind
        self._run_program = run_program

    def leave_out_steps(self) -> None:
        """Half of the steps, then a quarter, down to single ones, from the end."""
        length = len(self.best.program.steps) // 2
        while length and self.runs_left:
            end = len(self.best.program.steps)
            while end > 0 and self.runs_left:
                steps = self.best.program.steps
                begin = max(0, end - length)
                self._try(steps=steps[:begin] + steps[end:])
                # Steps behind the failure go with it, so there may be fewer than what was left out.
                end = min(begin, len(self.best.program.steps))
            length //= 2

    def simplify_steps(self) -> None:
        """Each step on its own: fewer rounds, shorter prompts, less of everything."""
        index = 0
        while index < len(self.best.program.steps):
            steps = self.best.program.steps
            for simpler in _simpler_steps(steps[index]):
                if self._try(steps=(*steps[:index], simpler, *steps[index + 1 :])):
                    break
            else:
                index += 1

    def simplify_setting(self) -> None:
        """Each field on its own: fewer groups, no overlap, no host tier."""
        progresses = True
        while progresses and self.runs_left:
            progresses = any(self._try(setting=simpler) for simpler in _simpler_settings(self.best.program.setting))

    def _try(self, **changes: Any) -> bool:
        """Whether the best program, so changed, fails for the same reason; then it is the best."""
        if not self.runs_left:
            return False
        self.runs_left -= 1
        try:
            outcome = self._run_program(structs.replace(self.best.program, **changes))
        except ConfigError:
            return False
        if outcome.failure is None or outcome.failure.kind != self._kind:
            return False
        self.best = outcome
        return True


def _simpler_steps(step: Step) -> Iterator[Step]:
    match step:
        case Run(rounds=rounds):
            yield from (Run(fewer) for fewer in _smaller(rounds, least=1))
        case Latency():
            yield from _lesser_structs(step, forward=1, store=1, transfer=0, spread=0)
        case Submit():
            yield from _simpler_structs(step, seed=0, namespace="", base=0)
            yield from _lesser_structs(step, shared_tokens=0, own_tokens=1, max_new_tokens=1, stops_after=1)
        case _:
            return


def _simpler_settings(setting: Setting) -> Iterator[Setting]:
    groups = setting.groups
    for index, group in enumerate(groups):
        if len(groups) > 1:
            yield structs.replace(setting, groups=(*groups[:index], *groups[index + 1 :]))
        for simpler in (Group(), *_simpler_structs(group, replayable=False, packing=1, fraction=1)):
            if simpler != group:
                yield structs.replace(setting, groups=(*groups[:index], simpler, *groups[index + 1 :]))
    plain = Setting()
    yield from _simpler_structs(
        setting,
        host_blocks=0,
        overlap_depth=0,
        mixed=True,
        order_seed=0,
        stop_probability=0.0,
        sliding_prepay=True,
        max_overtakes=plain.max_overtakes,
        safe_steps=plain.safe_steps,
    )
    yield from _lesser_structs(setting, batch=1, budget_tokens=1, pool=1, host_blocks=1)
    if (peer := setting.peer) is not None:
        yield structs.replace(setting, peer=None)
        simpler_peers = (
            *_simpler_structs(peer, host_blocks=0, overlap_depth=0, order_seed=0),
            *_lesser_structs(peer, batch=1, budget_tokens=1, pool=1, host_blocks=1),
        )
        yield from (structs.replace(setting, peer=simpler) for simpler in simpler_peers)


def _simpler_structs(value: Plain, **plain: Any) -> Iterator[Plain]:
    """`value` with one of the `plain` fields, for each that it does not have yet."""
    for field, simplest in plain.items():
        if getattr(value, field) != simplest:
            yield structs.replace(value, **{field: simplest})


def _lesser_structs(value: Plain, **least: int) -> Iterator[Plain]:
    """`value` with one number smaller, but none below the `least`."""
    for field, bound in least.items():
        number = getattr(value, field)
        if number is not None:
            yield from (structs.replace(value, **{field: less}) for less in _smaller(number, least=bound))


def _smaller(value: int, *, least: int) -> list[int]:
    """Numbers to try instead, the smallest first."""
    return sorted({least, (value + least) // 2, value - 1} - {value}) if value > least else []
