"""docs/differences.md and the rules of the comparison: every name has its row, and every row its name."""

import re
from pathlib import Path

import pytest

from tools.compare_reference.__main__ import main
from tools.compare_reference.program import ROWS
from tools.compare_reference.their_rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "differences.md"


def test_every_rule_of_the_reference_has_its_row() -> None:
    """What the comparison does otherwise, or ends at, is told; and nothing is told that it does not do."""
    assert set(re.findall(r"^\| `([a-z-]+)`", PAGE.read_text(), re.MULTILINE)) == {*RULES, *ROWS}


def test_the_command_prints_one_page(capfd: pytest.CaptureFixture[str]) -> None:
    """Programs that agree: exit status 0, and a page of what was compared."""
    assert main(["--programs", "2", "--mix", "f", "--role", "fused", "--width", "1", "--host", "no"]) == 0
    said = capfd.readouterr().out
    assert "2 of 2 programs" in said
    assert "differ:\n  none" in said
