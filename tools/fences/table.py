"""A row a fence: what takes it away, who notices, in which program, and what then has no order."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from tools.fences.programs import programs
from tools.fences.watch import Fences, kind_of_step
from tools.simulate.program import Program
from tools.simulate.run import Failure, run

HOST_KNOWS = "RoundInFlight.tokens: the host waits for forward"
"""What a round did lies before all that the host does when it knows the round's tokens. That hides other fences."""

NOT_HERE = {
    "CopyInFlight.has_passed: the host asks for write": (
        "asked by who lands what is over and waits for nothing; the simulation waits. tests/unit/test_host_tier.py"
    ),
    "IdShipper._free_page: the host asks for a stream": (
        "pinned ids are filled again when the device has read them: with CUDA only. tests/gpu/test_cuda_memory.py"
    ),
}
"""Fences that no program of a device without CUDA meets, and why; with the tests that need them."""


class Row(Struct, frozen=True):
    """`means` is how it was taken away when somebody noticed; None: nobody ever did, and `said` is empty.

    `met` is how often the programs came to it, and `program` the name of the one that noticed.
    """

    fence: str
    met: int
    means: str | None
    program: str
    said: str


def fences_met() -> Mapping[str, Mapping[str, int]]:
    """Every fence, and by program how often it was met. AssertionError if something is wrong with all in place."""
    met: dict[str, dict[str, int]] = {}
    for name, program in programs().items():
        fences = Fences()
        with fences.at_work():
            outcome = run(program)
        assert outcome.failure is None, f"{name}: {outcome.failure}"
        for fence, times in fences.met.items():
            met.setdefault(fence, {})[name] = times
    return met


def rows() -> Iterator[Row]:
    """The table. A fence is tried in the programs that meet it, the one that seldom does first."""
    everything = programs()
    for fence, times in sorted(fences_met().items()):
        meeting = {name: everything[name] for name in sorted(times, key=lambda name: (times[name], name))}
        yield row_of(fence, sum(times.values()), meeting)


def row_of(fence: str, met: int, meeting: Mapping[str, Program]) -> Row:
    """Take a fence away, by one means after the other.

    The checker does not hear of it; or a wait is left out, and the work does not wait; or the checker hears neither of
    it nor of landed rounds, since what the host knows may order the same. Of the latter alone it never has to say
    anything.
    """
    means = {"hidden": Fences(hidden=(fence,)), "left out": Fences(left_out=(fence,))}
    if fence != HOST_KNOWS:
        means["hidden with what the host knows"] = Fences(hidden=(fence, HOST_KNOWS))
    for mean, fences in means.items():
        for name, program in meeting.items():
            with fences.at_work():
                failure = run(program).failure
            if failure is not None:
                return Row(fence, met, mean, name, _said(failure))
    return Row(fence, met, None, "", "")


def _said(failure: Failure) -> str:
    if failure.kind != "order":
        return failure.message.splitlines()[-1]
    _, earlier, _, later, *_ = failure.message.split("'")
    return f"{kind_of_step(earlier)} | {kind_of_step(later)}"
