"""`python -m tools.check`: everything that must hold before work is sent, as CI runs it.

Every check runs, whatever the others say. pytest comes last, so that its closing line closes the output.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

# Read-only and independent of each other, the slowest first: two cores share them.
STATIC_CHECKS = {
    "types": (PYTHON, "-m", "mypy"),
    "import contracts": (PYTHON, "-c", LINT_IMPORTS),
    "lint": (PYTHON, "-m", "ruff", "check", "."),
    "format": (PYTHON, "-m", "ruff", "format", "--check", "."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; 0 when every one passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave out the tests marked slow or live")
    options, pytest_arguments = parser.parse_known_args(arguments)
    failed = run_static_checks()
    print("== tests", flush=True)
    selection = ["-m", "not slow and not live"] if options.fast else []
    if subprocess.run([PYTHON, "-m", "pytest", *selection, *pytest_arguments], cwd=ROOT, check=False).returncode:
        failed.append("tests")
    if failed:
        print(f"FAILED: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_static_checks() -> list[str]:
    """Run and report the checks that only read; returns the names of those that failed."""
    failed = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for name, (code, seconds, output) in zip(
            STATIC_CHECKS, pool.map(run_quietly, STATIC_CHECKS.values()), strict=True
        ):
            print(f"== {name}: {'FAILED' if code else 'ok'} ({seconds:.1f} s)", flush=True)
            if code:
                print(output, flush=True)
                failed.append(name)
    return failed


def run_quietly(command: Sequence[str]) -> tuple[int, float, str]:
    """Exit status, seconds and output of a command in the repository."""
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, time.perf_counter() - begin, done.stdout


if __name__ == "__main__":
    sys.exit(main())
