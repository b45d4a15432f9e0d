"""The house holds: what the control plane may load, and that a wrong import would be seen."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LOADED_BY = """
import importlib, pkgutil, sys
before = set(sys.modules)
import control_plane
for module in pkgutil.walk_packages(control_plane.__path__, "control_plane."):
    if not module.name.startswith({skipped!r}):
        importlib.import_module(module.name)
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - set(sys.stdlib_module_names)))
"""


def loaded_by_the_control_plane(*, skipped: tuple[str, ...]) -> set[str]:
    """Top-level packages, standard library aside, that a fresh interpreter loads with every control-plane module."""
    program = LOADED_BY.format(skipped=skipped)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_control_plane_loads_msgspec_and_numpy_and_nothing_else() -> None:
    """In a fresh interpreter, every module of it: no torch, no cupy, no web, no model library."""
    loaded = loaded_by_the_control_plane(skipped=("control_plane.testing",))
    assert "control_plane" in loaded
    # typing_extensions comes along with msgspec where it is installed.
    assert loaded - {"typing_extensions"} <= {"control_plane", "msgspec", "numpy"}


def test_its_test_helpers_load_no_device_either() -> None:
    """`control_plane.testing` may bring test libraries along, never torch or cupy."""
    loaded = loaded_by_the_control_plane(skipped=())
    assert "control_plane" in loaded
    assert not loaded & {"torch", "cupy", "cupyx", "transformers", "aiohttp", "uvloop"}


BREAKS = [
    ("house", "data_plane/batch/rows.py", "import tokenspeed"),
    ("house", "tokenspeed/__init__.py", "import tools"),
    ("control-plane", "control_plane/cache/__init__.py", "import control_plane.scheduler"),
    ("control-plane", "control_plane/messages/plan.py", "import control_plane.fsm"),
    ("boundary", "data_plane/batch/rows.py", "from control_plane import Scheduler"),
    ("boundary", "data_plane/batch/rows.py", "from control_plane.config import SchedulerConfig"),
    ("no-device", "control_plane/loop/__init__.py", "import torch"),
    ("no-device", "control_plane/scheduler/__init__.py", "import aiohttp"),
    ("core", "control_plane/fsm/__init__.py", "import time"),
    ("core", "control_plane/cache/__init__.py", "import asyncio"),
    ("device-home", "tokenspeed/__init__.py", "from torch import cuda"),
]


def contract_holds(tree: Path, contract: str) -> bool:
    """Whether import-linter keeps one contract over a tree."""
    call = f"lint_imports(limit_to_contracts=({contract!r},), no_cache=True)"
    command = [sys.executable, "-c", f"import sys; from importlinter.cli import lint_imports; sys.exit({call})"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert "Contracts: " in done.stdout, f"the check itself failed:\n{done.stdout}{done.stderr}"
    return done.returncode == 0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources that a test may spoil."""
    copy = tmp_path_factory.mktemp("house")
    for package in ("control_plane", "data_plane", "tokenspeed", "tools"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


@pytest.mark.parametrize(("contract", "file", "line"), BREAKS)
def test_a_deliberate_break_is_caught(tree: Path, contract: str, file: str, line: str) -> None:
    """The contract holds on the sources as they are, and does not with one offending import."""
    target = tree / file
    original = target.read_text()
    assert contract_holds(tree, contract)
    target.write_text(f"{original}\n{line}\n")
    try:
        assert not contract_holds(tree, contract)
    finally:
        target.write_text(original)
