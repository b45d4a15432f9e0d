"""`python -m tools.check`: everything that must hold before work is sent, as CI runs it.

Every check runs, whatever the others say. The static ones run beside the tests, which share the cores; what they say
comes last. `--quick` is for the inner loop: form, and the tests that take no model and no random program.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

# Read-only and independent of each other.
STATIC_CHECKS = {
    "format": (PYTHON, "-m", "ruff", "format", "--check", "."),
    "lint": (PYTHON, "-m", "ruff", "check", "."),
    "import contracts": (PYTHON, "-c", LINT_IMPORTS),
    "types": (PYTHON, "-m", "mypy"),
}
QUICK_CHECKS = ("format", "lint")
NOT_SLOW = ("-m", "not slow and not live")
QUICK_TESTS = ("tests/unit", "tests/scenarios")
# Each worker loads the models that its tests want: more of them want more memory than machines have.
MOST_WORKERS = 4
SLOWEST_SHOWN = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks; 0 when every one passed. What it does not know goes to pytest."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="leave out the tests marked slow or live")
    parser.add_argument("--quick", action="store_true", help="format, lint, unit tests and scenarios")
    parser.add_argument("--workers", type=int, default=workers_here(), help="processes that share the tests")
    options, pytest_arguments = parser.parse_known_args(arguments)
    begin = time.perf_counter()
    names = QUICK_CHECKS if options.quick else tuple(STATIC_CHECKS)
    with ThreadPoolExecutor(max_workers=1) as beside:
        said = beside.submit(lambda: [run_quietly(STATIC_CHECKS[name]) for name in names])
        command = [PYTHON, "-m", "pytest", *shared_among(options.workers), f"--durations={SLOWEST_SHOWN}"]
        if options.fast or options.quick:
            command += NOT_SLOW
        if options.quick:
            command += QUICK_TESTS
        tests = subprocess.run([*command, *pytest_arguments], cwd=ROOT, check=False).returncode
        failed = report(zip(names, said.result(), strict=True))
    if tests:
        failed.append("tests")
    verdict = f"FAILED: {', '.join(failed)}" if failed else "ok"
    print(f"{verdict} ({time.perf_counter() - begin:.0f} s)", flush=True)
    return 1 if failed else 0


def workers_here() -> int:
    """A process for each core, within reason."""
    return min(MOST_WORKERS, os.cpu_count() or 1)


def shared_among(workers: int) -> tuple[str, ...]:
    """pytest's options for so many processes. Neighbours stay together, for what a session or module sets up once."""
    return ("-n", str(workers), "--dist", "worksteal") if workers > 1 else ()


def report(results: Iterable[tuple[str, tuple[int, float, str]]]) -> list[str]:
    """Say what each check gave; returns the names of those that failed."""
    failed = []
    for name, (code, seconds, output) in results:
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
