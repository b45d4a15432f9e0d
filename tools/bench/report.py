"""Comparisons as tables for a terminal and for the page: the same text in both."""

from collections.abc import Sequence
from itertools import groupby

from tools.bench.figures import Figures, markdown_table
from tools.bench.rounds import OURS, Comparison
from tools.bench.services import ServiceComparison

TITLES = {
    "W1": "W1: a full batch decodes",
    "W2": "W2: a full batch decodes on several cache groups",
    "W3": "W3: prompts in, each over with its first token",
    "W4": "W4: more than the pool holds",
    "W5": "W5: a recorded conversation in virtual time",
    "W6": "W6: requests decode while prompts wait for blocks",
}


def describe_rounds(comparisons: Sequence[Comparison]) -> str:
    """Every workload that was measured round by round, and how our rounds grow."""
    sections = []
    for workload, title in TITLES.items():
        rows = [comparison for comparison in comparisons if comparison.workload == workload]
        if rows:
            sections.append(f"### {title}\n\n{comparison_table(rows)}")
    growth = growth_rows(comparisons)
    if growth:
        head = ["ours, in alternation", "median", "min", "p99"]
        sections.append(f"### How our round grows\n\n{markdown_table(head, growth)}")
    return "\n\n".join(sections)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """One row a case: microseconds as median / min / p99, then ours over each other one, by medians and by minima."""
    others = list(dict.fromkeys(name for comparison in comparisons for name in comparison.others))
    head = ["case", "clock", "ours, us", "plan + wire + advance"]
    for other in others:
        head += [f"{other}, us", "ratio: median", "min"]
    return markdown_table(head, [_comparison_row(comparison, others) for comparison in comparisons])


def _comparison_row(comparison: Comparison, others: Sequence[str]) -> list[str]:
    parts = " + ".join(f"{part:.1f}" for part in comparison.ours_parts)
    cells = [comparison.name, comparison.clock, triple(comparison.ours), parts]
    for other in others:
        if other in comparison.others:
            ratio = comparison.ratio(other)
            cells += [triple(comparison.others[other]), f"{ratio.median_us:.4f}", f"{ratio.min_us:.4f}"]
        else:
            cells += ["not run", "", ""]
    return cells


def triple(figures: Figures) -> str:
    """median / min / p99."""
    return f"{figures.median_us:.1f} / {figures.min_us:.1f} / {figures.p99_us:.1f}"


def growth_rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Our largest case over our smallest, of those measured together."""
    rows = []
    for _, group in groupby(comparisons, key=lambda comparison: comparison.alternated_with):
        measured = list(group)
        first, last = measured[0], measured[-1]
        if len(measured) < 2 or first.workload == "W2":
            continue
        growth = last.ours.over(first.ours)
        name = f"{first.workload}: {last.name} over {first.name}"
        rows.append([name, *(f"x{value:.2f}" for value in (growth.median_us, growth.min_us, growth.p99_us))])
    return rows


def describe_services(comparisons: Sequence[ServiceComparison]) -> str:
    """One table a workload: what each scheduler took for the same requests."""
    sections = []
    for workload, group in groupby(comparisons, key=lambda comparison: comparison.workload):
        rows = [row for comparison in group for row in _service_rows(comparison)]
        sections.append(f"### {TITLES[workload]}\n\n{markdown_table(SERVICE_HEAD, rows)}")
    return "\n\n".join(sections)


SERVICE_HEAD = [
    "case and scheduler",
    "seconds (submit + rounds)",
    "ns per prompt token",
    "us per output token",
    "prompt tokens/s",
    "hit rate",
    "rounds",
    "median round, us",
    "ours over it",
]


def _service_rows(comparison: ServiceComparison) -> list[list[str]]:
    rows = []
    for name, served in comparison.served.items():
        ratio = ""
        if name != OURS and comparison.are_complete(OURS, name):
            ratio = f"{comparison.ratio(OURS, name):.3f}"
        seconds = f"{served.seconds:.3f} ({served.submit_s:.3f} + {served.rounds_s:.3f})"
        if not served.is_complete:
            seconds += f", given up with {served.finished} finished"
        rows.append(
            [
                f"{comparison.name}: {name}",
                seconds,
                f"{served.seconds / served.prompt_tokens * 1e9:.1f}",
                f"{served.seconds / served.output_tokens * 1e6:.1f}" if served.output_tokens else "",
                f"{served.prompt_tokens / served.seconds / 1e6:.2f} M",
                f"{served.hit_rate:.3f}",
                str(served.rounds),
                f"{served.median_round_us:.0f}",
                ratio,
            ]
        )
    return rows
