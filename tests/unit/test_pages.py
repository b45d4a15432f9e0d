"""What docs/ says is what the code does."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tokenspeed.server.metric_families import FAMILIES, HTTP_REQUESTS
from tools import pages


def test_the_written_sections_are_current() -> None:
    """`python -m tools.pages` puts them right."""
    assert pages.outdated() == []


def test_a_page_without_markers_is_an_error() -> None:
    """Nothing is lost without a word."""
    with pytest.raises(ValueError, match="lacks the markers"):
        pages.renewed("metrics.md", "# Metrics\n")


def expressions(dashboard: Any) -> Iterator[str]:
    """Every query of a dashboard."""
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query")


def test_the_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    """Every expression of docs/grafana.json, by name, selected label and label of a sum."""
    names: dict[str, set[str]] = {"process_resident_memory_bytes": set()}
    for family in (*FAMILIES, HTTP_REQUESTS):
        labels = {*family.labels} if family is HTTP_REQUESTS else {"model_name", *family.labels}
        if family.histogram is not None:
            names |= {f"{family.name}_bucket": {*labels, "le"}, f"{family.name}_sum": labels}
        else:
            names[family.shown_name] = labels
    dashboard = json.loads((pages.DOCS / "grafana.json").read_text())
    shown = set()
    for expression in expressions(dashboard):
        found = re.findall(r"((?:tokenspeed:|process_)\w+)(?:\{([^}]*)\})?", expression)
        assert found, expression
        for name, selector in found:
            assert name in names, f"{name} in {expression}"
            asked = set(re.findall(r"(\w+)=", selector))
            assert asked <= names[name], f"{asked} of {name} in {expression}"
            shown.add(name)
        for by in re.findall(r"by \(([^)]*)\)", expression):
            assert set(by.replace(" ", "").split(",")) <= names[found[0][0]], expression
    assert len(shown) >= 20
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
