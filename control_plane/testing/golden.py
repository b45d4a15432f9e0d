"""Expectations that can rewrite themselves: with updating on, a text that differs is replaced in the test's source."""

import inspect
import textwrap
from pathlib import Path

is_updating = False
"""Set by the test runner's `--golden-update`."""


def compare(actual: str, expected: str) -> None:
    """Fail with both versions if the texts differ (indentation apart); or rewrite the test that asked."""
    wanted = textwrap.dedent(expected).strip()
    if actual == wanted:
        return
    if is_updating:
        _rewrite(actual, expected)
        return
    read, want = textwrap.indent(actual, "    "), textwrap.indent(wanted, "    ")
    raise AssertionError(f"the rounds read\n{read}\nexpected\n{want}")


def _rewrite(actual: str, expected: str) -> None:
    frame = inspect.stack()[3]
    path = Path(frame.filename)
    source = path.read_text()
    assert source.count(expected) == 1, f"{path}:{frame.lineno}: this expectation is not unique; rewrite it by hand"
    indent = " " * (len(frame.code_context[0]) - len(frame.code_context[0].lstrip()) + 4 if frame.code_context else 8)
    body = textwrap.indent(actual, indent)
    path.write_text(source.replace(expected, f"\n{body}\n{indent[:-4]}"))
