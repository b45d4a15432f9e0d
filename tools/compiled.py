"""`python -m tools.compiled FOLDER`: a copy of the program with the control plane's hot modules compiled by mypyc.

Pure Python is what is developed, shipped and tested; this is for whoever wants the last tenths of a round and has a C
compiler. Run anything with the folder as its working directory: `cd FOLDER && python -m tools.bench`, or pytest, which
then tests the compiled modules. Modules with msgspec structs stay as they are: mypyc does not know their metaclass.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("control_plane", "data_plane", "tokenspeed", "tools", "tests", "pyproject.toml")
HOT = (
    "control_plane/cache/coordinator/holdings.py",
    "control_plane/cache/coordinator/step.py",
    "control_plane/cache/core/block_pool.py",
    "control_plane/cache/core/block_table.py",
    "control_plane/cache/prefix/hash_chain.py",
    "control_plane/cache/prefix/index.py",
    "control_plane/scheduler/decode_run.py",
    "control_plane/scheduler/progress.py",
    "control_plane/scheduler/repetition.py",
    "control_plane/scheduler/resident.py",
)
BUILD = """
from setuptools import setup
from mypyc.build import mypycify

setup(name="hot", packages=[], ext_modules=mypycify({modules!r}, opt_level="3"))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy, compile, and say what was compiled."""
    parser = argparse.ArgumentParser(prog="python -m tools.compiled", description=__doc__)
    parser.add_argument("folder", type=Path, help="made by this; must not exist")
    folder = parser.parse_args(arguments).folder
    if folder.exists():
        parser.error(f"{folder} exists already: name a folder that does not")
    copy(folder)
    command = [sys.executable, "-c", BUILD.format(modules=list(HOT)), "build_ext", "--inplace"]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        print(f"{finished.stdout}{finished.stderr}", file=sys.stderr)
        return 1
    print(f"{len(HOT)} modules are compiled in {folder}")
    return 0


def copy(folder: Path) -> None:
    """What the program and its tests need, without caches."""
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


if __name__ == "__main__":
    sys.exit(main())
