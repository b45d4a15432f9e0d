"""Timings as figures, and what must stand beside them to be worth anything."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import numpy as np


@dataclass(frozen=True)
class Figures:
    """Microseconds a round."""

    median_us: float
    min_us: float
    p99_us: float

    @staticmethod
    def of(seconds: Sequence[float]) -> "Figures":
        """Figures of at least one timing."""
        microseconds = np.sort(np.asarray(seconds)) * 1e6
        last = len(microseconds) - 1
        return Figures(float(np.median(microseconds)), float(microseconds[0]), float(microseconds[int(last * 0.99)]))

    def over(self, other: "Figures") -> "Figures":
        """Ratios, figure by figure."""
        return Figures(self.median_us / other.median_us, self.min_us / other.min_us, self.p99_us / other.p99_us)


def machine_facts() -> str:
    """One line: when, on what, under what load."""
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{when}; {cores} cores of {processor()}; Python {platform.python_version()}; load average {load:.1f}"


def processor() -> str:
    """The processor's name as the kernel tells it, or the architecture."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def installed(*packages: str) -> str:
    """`name version` of each package that is installed."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])
