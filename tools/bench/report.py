"""Comparisons as tables for a terminal and for the page: the same text in both."""

from collections.abc import Sequence
from itertools import groupby

from tools.bench.figures import Figures, markdown_table
from tools.bench.rounds import Comparison, alternated_together


def describe_rounds(comparisons: Sequence[Comparison]) -> str:
    """Both workloads, and how our rounds grow."""
    sections = []
    for workload, title in (
        ("W1", "W1: a full batch decodes"),
        ("W6", "W6: requests decode while prompts wait for blocks"),
    ):
        rows = [comparison for comparison in comparisons if comparison.case.workload == workload]
        if rows:
            sections.append(f"### {title}\n\n{comparison_table(rows)}")
    growth = growth_rows(comparisons)
    if growth:
        head = ["ours, in alternation", "median", "min", "p99"]
        sections.append(f"### How our round grows\n\n{markdown_table(head, growth)}")
    return "\n\n".join(sections)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """One row a case: microseconds as median / min / p99, then ours over the reference."""
    head = ["case", "clock", "ours, us", "plan + wire + advance", "reference, us", "ratio: median", "min", "p99"]
    return markdown_table(head, [comparison_row(comparison) for comparison in comparisons])


def comparison_row(comparison: Comparison) -> list[str]:
    """The cells of one case."""
    ratio = comparison.ratio
    return [
        case_name(comparison),
        comparison.clock,
        triple(comparison.ours),
        " + ".join(f"{part:.1f}" for part in comparison.ours_parts),
        triple(comparison.reference),
        f"{ratio.median_us:.4f}",
        f"{ratio.min_us:.4f}",
        f"{ratio.p99_us:.4f}",
    ]


def case_name(comparison: Comparison) -> str:
    """A case in words."""
    case = comparison.case
    if case.workload == "W6":
        return f"{case.waiting} waiting, {case.batch} decoding"
    return f"{case.batch} x {case.context}, pages of {case.granularity}"


def triple(figures: Figures) -> str:
    """median / min / p99."""
    return f"{figures.median_us:.1f} / {figures.min_us:.1f} / {figures.p99_us:.1f}"


def growth_rows(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Our largest case over our smallest, of those measured together."""
    rows = []
    for (workload, granularity, batch), group in groupby(
        comparisons, key=lambda comparison: alternated_together(comparison.case)
    ):
        measured = list(group)
        if len(measured) < 2:
            continue
        first, last = measured[0], measured[-1]
        growth = last.ours.over(first.ours)
        if workload == "W6":
            name = f"{last.case.waiting} over {first.case.waiting} waiting"
        else:
            name = f"batch {batch}, pages of {granularity}: {last.case.context} over {first.case.context} of context"
        rows.append([name, *(f"x{value:.2f}" for value in (growth.median_us, growth.min_us, growth.p99_us))])
    return rows
