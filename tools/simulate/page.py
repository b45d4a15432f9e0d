"""A long search on one page: how far it is, and in the end what was run, on what, in what weather."""

from collections import Counter

from tools.simulate.draw_setting import is_at_bound
from tools.simulate.program import Fail, GiveUp, Hold, Latency, Program, Repeat, Step, Submit, Tell
from tools.simulate.run import Outcome

LINES_EVERY = 100
"""Outcomes between two progress lines that stay."""


class Page:
    """Adds up outcomes."""

    def __init__(self, first_seed: int, *, most_rounds: int | None) -> None:
        self.rounds = 0
        self.seeds = 0
        self.failed: list[tuple[int, str]] = []
        self._most_rounds = most_rounds
        self._next_seed = first_seed
        self._ahead: set[int] = set()
        self._of_shape: Counter[str] = Counter()
        self._weather: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._figures: Counter[str] = Counter()

    @property
    def is_enough(self) -> bool:
        """Whether there were as many rounds as were asked for."""
        return self._most_rounds is not None and self.rounds >= self._most_rounds

    @property
    def is_due(self) -> bool:
        """Whether the progress line shall stay."""
        return self.seeds % LINES_EVERY == 0

    def add(self, outcome: Outcome) -> None:
        """A seed has ended."""
        figures = outcome.figures
        self.rounds += figures.rounds
        self.seeds += 1
        self._ahead.add(outcome.program.seed)
        while self._next_seed in self._ahead:
            self._ahead.remove(self._next_seed)
            self._next_seed += 1
        if outcome.failure is not None:
            self.failed.append((outcome.program.seed, outcome.failure.kind))
        self._of_shape[_shape(outcome.program)] += figures.rounds
        self._weather.update(filter(None, map(_weather, outcome.program.steps)))
        self._weather["a pool at the bound"] += is_at_bound(outcome.program.setting)
        self._ends.update(figures.ends)
        self._figures.update(
            retractions=figures.retractions,
            blocks_stored=figures.stored_blocks,
            blocks_loaded=figures.loaded_blocks,
            tokens_hit=figures.cached_tokens,
            tokens_generated=figures.generated_tokens,
            refused=figures.refused,
        )

    def progress_line(self) -> str:
        """How far it is, and with which seed one could go on."""
        of = "" if self._most_rounds is None else f" of {self._most_rounds:,}"
        done = f"{self.rounds:,}{of} rounds, {self.seeds:,} seeds"
        return f"{done}, {len(self.failed)} failed; next --seed {self._next_seed}"

    def text(self) -> str:
        """All of it."""
        failed = ", ".join(f"{seed} ({kind})" for seed, kind in self.failed) or "none"
        return "\n".join(
            (
                self.progress_line(),
                f"failed: {failed}",
                "",
                *_table("rounds by role and groups", self._of_shape),
                *_table("weather", self._weather),
                *_table("requests by end", self._ends),
                *_table("figures", self._figures),
            )
        )


def _table(title: str, numbers: Counter[str]) -> list[str]:
    return [title, *(f"  {name:<44}{number:>12,}" for name, number in sorted(numbers.items())), ""]


def _shape(program: Program) -> str:
    kinds = sorted({"replayable" if group.replayable else group.kind for group in program.setting.groups})
    roles = "fused" if program.setting.peer is None else "prefill and decode"
    return f"{roles}: {' + '.join(kinds)}"


def _weather(step: Step) -> str | None:
    """What kind of weather a step is."""
    match step:
        case Fail(what=what, is_late=is_late):
            return f"{what} fails{' at its end' if is_late else ''}"
        case Repeat(news=news):
            return f"{news} told twice"
        case Hold(news=news, is_lost=is_lost):
            return f"{news} that does not end{' before all leave' if is_lost else ''}"
        case GiveUp():
            return "load never ends, its round is given up"
        case Tell(what=what):
            return f"late {what}"
        case Latency(spread=spread):
            return "other latencies, out of order" if spread else "other latencies"
        case Submit():
            return None
        case _:
            return type(step).__name__.lower()
