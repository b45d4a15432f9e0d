"""Every fence of the device has work to do: the order checker, or the tokens, say which one is missing (rule 8.5)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.fences.table import HOST_KNOWS, NOT_HERE, rows

DATA_PLANE = Path(__file__).parents[2] / "data_plane"


@pytest.mark.slow
def test_every_fence_that_is_taken_away_is_found_missing() -> None:
    """One row a fence (`-s` shows them): two steps that only it ordered, or what went wrong when nobody waited.

    Pinned stores copy what has landed, so the host's knowledge of that orders them as well: that fence is missed when
    both are gone. The host's wait for the tokens orders nothing else that the checker knows of.
    """
    table = list(rows())
    print(*table, sep="\n")
    assert [row.fence for row in table if row.means is None] == []
    others = {row.fence: row.means for row in table if row.means != "hidden"}
    assert others == {
        HOST_KNOWS: "left out",
        "StreamedHostTier._store_pinned: write waits for forward": "hidden with what the host knows",
    }
    places = {row.fence.partition(":")[0] for row in table} | {fence.partition(":")[0] for fence in NOT_HERE}
    assert places - {"forward stream"} == set(_places_that_wait())


def _places_that_wait() -> Iterator[str]:
    """The functions of the data plane that wait for a mark, or ask for it."""
    for path in sorted(DATA_PLANE.rglob("*.py")):
        if path.parent.name != "streams":  # they pass on what others wait for
            for owner in ast.walk(ast.parse(path.read_text())):
                if isinstance(owner, ast.ClassDef):
                    yield from (f"{owner.name}.{part.name}" for part in owner.body if _waits(part))


def _waits(part: ast.stmt) -> bool:
    return isinstance(part, ast.FunctionDef) and any(_is_wait(node) for node in ast.walk(part))


def _is_wait(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="wait_host" | "query"), args=[]):
            return True
        case ast.Call(func=ast.Attribute(attr="wait"), args=[_]):
            return True
        case ast.Attribute(attr="done", value=ast.Attribute(attr="copied")):
            return True
    return False
