"""A long comparison on one page: how far it is, what was compared, and what differs."""

from collections import Counter, defaultdict
from collections.abc import Mapping

from tools.compare_reference.compare import Outcome

SEEDS_SHOWN = 6


class Page:
    """Adds up outcomes."""

    def __init__(self, programs: int) -> None:
        self._asked = programs
        self._programs = 0
        self._rounds = 0
        self._figures: Counter[str] = Counter()
        self._of: dict[str, Counter[str]] = defaultdict(Counter)
        self._with_difference: dict[str, Counter[str]] = defaultdict(Counter)
        self._at_rows: dict[str, list[int]] = defaultdict(list)
        self._kinds: dict[str, list[int]] = defaultdict(list)

    @property
    def differing(self) -> int:
        """Programs that differ in what no row tells."""
        return sum(map(len, self._kinds.values()))

    @property
    def is_due(self) -> bool:
        """Whether the progress line shall stay."""
        return self._programs % 500 == 0

    def add(self, outcome: Outcome) -> None:
        """A program has ended."""
        self._programs += 1
        self._rounds += outcome.rounds
        self._figures.update(
            retractions=outcome.retractions,
            blocks_stored=outcome.stored_blocks,
            blocks_loaded=outcome.loaded_blocks,
        )
        seed = outcome.setting.seed
        if not outcome.is_explained:
            self._kinds[f"{outcome.setting.family.role}: {outcome.kind}"].append(seed)
        elif outcome.difference is not None:
            self._at_rows[str(outcome.difference.row)].append(seed)
        for table, name in _families(outcome).items():
            self._of[table][name] += 1
            self._with_difference[table][name] += not outcome.is_explained

    def progress_line(self) -> str:
        """How far it is."""
        at_rows = sum(map(len, self._at_rows.values()))
        return (
            f"{self._programs:,} of {self._asked:,} programs, {self._rounds:,} rounds: "
            f"{self.differing} differ, {at_rows} end at a row of docs/differences.md"
        )

    def text(self) -> str:
        """All of it."""
        lines = [self.progress_line(), ""]
        for table, programs in sorted(self._of.items()):
            lines.append(f"{table:<30}{'programs':>10}{'differ':>10}")
            lines += [
                f"  {name:<28}{count:>10,}{self._with_difference[table][name]:>10,}"
                for name, count in sorted(programs.items())
            ]
            lines.append("")
        lines += [f"{name.replace('_', ' ')}: {count:,}" for name, count in self._figures.items()]
        lines += _listed("end at a row", self._at_rows) + _listed("differ", self._kinds)
        return "\n".join(lines)


def difference_report(outcome: Outcome) -> str:
    """One program that differs: its setting, the rounds before, and the round on both sides."""
    lines = [f"seed {outcome.setting.seed}: {outcome.kind}", f"{outcome.setting.family}", f"{outcome.setting.config}"]
    lines += [f"  {line}" for line in outcome.history]
    if (found := outcome.difference) is not None:
        lines.append(f"round {found.round}" + (f", row {found.row}" if found.row else ""))
        lines += [
            f"  {name}: {getattr(found.ours, name)} here, {getattr(found.theirs, name)} there" for name in found.fields
        ]
    return "\n".join(lines)


def _families(outcome: Outcome) -> Mapping[str, str]:
    family = outcome.setting.family
    return {
        "groups": family.mix,
        "role": family.role,
        "decode width": str(family.decode_width),
        "pool": "short" if family.is_short else "roomy",
        "host tier": "yes" if family.has_host else "no",
        "aborts and failures": "yes" if family.aborts else "no",
        "overlap": str(family.overlap_depth),
    }


def _listed(title: str, seeds_by_name: Mapping[str, list[int]]) -> list[str]:
    lines = []
    for name, seeds in sorted(seeds_by_name.items(), key=lambda entry: -len(entry[1])):
        shown = ", ".join(map(str, sorted(seeds)[:SEEDS_SHOWN]))
        lines.append(f"  {len(seeds):>6} {name} (seeds {shown}{', ...' if len(seeds) > SEEDS_SHOWN else ''})")
    return ["", f"{title}:", *(lines or ["  none"])]
