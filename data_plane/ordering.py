"""Proof that no two pieces of work touch the same memory without an order between them (rule 8.5).

What is ordered: work on one stream, in the order in which it was enqueued; what is enqueued after `wait`, behind what
was enqueued before `record`; and whatever is enqueued, behind every event that the host saw pass before. The host
counts as one thread: that an event had passed is true for all of its threads.

Vector clocks say it: the work of a stream is numbered, and a clock holds, for each stream, the number of the last work
there that lies before. Beside each block, table row, slot and staging buffer stands who read and who wrote it last in
each stream.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from data_plane.streams.base import Access, BlockSpan, SlotState, Span, StagingBuffers, TableRows

KEPT_VIOLATIONS = 100

log = logging.getLogger("tokenspeed.device")

Clock = tuple[int, ...]
Cells = npt.NDArray[Any]
_READ, _WRITE = 0, 1


class Violation(Struct, frozen=True):
    """Two pieces of work without an order, of which at least one writes what both touch.

    `earlier` was enqueued first. `resource` is what `cells` are numbers of, as in "device blocks of group 0".
    """

    earlier: str
    earlier_stream: str
    later: str
    later_stream: str
    resource: str
    cells: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"nothing orders {self.earlier!r} on the {self.earlier_stream} stream and {self.later!r} on the "
            f"{self.later_stream} stream, which both touch {self.resource}: {', '.join(map(str, self.cells))}"
        )


class _Resource:
    """Cells of one kind: the number of the last work in each stream that read, and that wrote, each of them."""

    def __init__(self, name: str, streams: int) -> None:
        self.name = name
        self._last = np.zeros((2, streams, 0), dtype=np.int64)

    def unordered(self, cells: Cells, clock: Sequence[int], *, writes: bool) -> Iterator[tuple[int, int, Cells]]:
        """(stream, work, cells) of the last work in each stream that conflicts and does not lie before `clock`."""
        self._reach(cells)
        for kind in (_READ, _WRITE) if writes else (_WRITE,):
            for stream, passed in enumerate(clock):
                last = self._last[kind, stream, cells]
                late = last > passed
                if late.any():
                    for number in np.unique(last[late]).tolist():
                        yield stream, number, cells[last == number]

    def touch(self, cells: Cells, stream: int, number: int, *, writes: bool) -> None:
        """This work is now the last in its stream."""
        self._reach(cells)
        self._last[_WRITE if writes else _READ, stream, cells] = number

    def _reach(self, cells: Cells) -> None:
        have, need = self._last.shape[2], int(cells.max()) + 1
        if need > have:
            self._last = np.pad(self._last, ((0, 0), (0, 0), (0, max(need, 2 * have) - have)))


class OrderChecker:
    """Told of everything that is enqueued, recorded and waited for; keeps and logs what is in no order.

    Blocks of different groups share bytes through their parents (block `b` of a group lies in parent
    `b // packing`). A parent belongs to one group at a time, so work of two groups on one parent must be ordered.
    """

    def __init__(self, packings: Sequence[int], streams: Sequence[str]) -> None:
        """`packings` are the blocks in a parent of each group, `streams` the names of the streams, by their index."""
        self.violations: list[Violation] = []
        self._packings = tuple(packings)
        self._streams = tuple(streams)
        self._lock = Lock()
        self._clocks = [[0] * len(streams) for _ in streams]
        self._host = [0] * len(streams)
        # Labels of the work that is not yet known to be over: the first has the number `_over + 1`.
        self._labels: list[deque[str]] = [deque() for _ in streams]
        self._over = [0] * len(streams)
        self._resources: dict[str, _Resource] = {}

    def enqueued(self, stream: int, label: str, access: Access) -> None:
        """Work was enqueued."""
        with self._lock:
            clock = self._clocks[stream]
            _join(clock, self._host)
            clock[stream] += 1
            self._labels[stream].append(label)
            if access.reads or access.writes:
                self._check(stream, label, access)
                for span, writes in _spans(access):
                    for resource, cells in self._noted(span):
                        resource.touch(cells, stream, clock[stream], writes=writes)

    def recorded(self, stream: int) -> Clock:
        """A mark was recorded: what lies before it."""
        with self._lock:
            return tuple(self._clocks[stream])

    def waited(self, stream: int, clock: Clock) -> None:
        """What comes on this stream lies behind a mark."""
        with self._lock:
            _join(self._clocks[stream], clock)

    def passed(self, clock: Clock) -> None:
        """The host saw that a mark has passed."""
        with self._lock:
            _join(self._host, clock)
            for stream, labels in enumerate(self._labels):
                for _ in range(self._host[stream] - self._over[stream]):
                    labels.popleft()
                self._over[stream] = self._host[stream]

    def _check(self, stream: int, label: str, access: Access) -> None:
        clock = self._clocks[stream]
        if all(passed == behind[index] for index, (passed, behind) in enumerate(zip(clock, self._clocks, strict=True))):
            return  # all that was enqueued so far lies before
        found: dict[tuple[int, int, str], set[int]] = {}
        for span, writes in _spans(access):
            for resource, cells in self._looked_at(span):
                for other, number, common in resource.unordered(cells, clock, writes=writes):
                    found.setdefault((other, number, resource.name), set()).update(common.tolist())
        for (other, number, name), numbers in found.items():
            earlier = self._labels[other][number - self._over[other] - 1]
            self._report(
                Violation(earlier, self._streams[other], label, self._streams[stream], name, tuple(sorted(numbers)))
            )

    def _report(self, violation: Violation) -> None:
        log.error("%s", violation)
        if len(self.violations) < KEPT_VIOLATIONS:
            self.violations.append(violation)

    def _noted(self, span: Span) -> Iterator[tuple[_Resource, Cells]]:
        """Where a span leaves its mark: its cells, and for the eyes of other groups its parents."""
        if not len(_cells(span)):
            return
        yield self._resource(_name(span)), _cells(span)
        if isinstance(span, BlockSpan) and len(self._packings) > 1:
            yield self._parents(span, span.group), span.blocks // self._packings[span.group]

    def _looked_at(self, span: Span) -> Iterator[tuple[_Resource, Cells]]:
        """Where a span meets the marks of others: on its cells, and on its parents as every other group marked them."""
        if not len(_cells(span)):
            return
        yield self._resource(_name(span)), _cells(span)
        if isinstance(span, BlockSpan) and len(self._packings) > 1:
            parents = np.unique(span.blocks // self._packings[span.group])
            for group in range(len(self._packings)):
                if group != span.group:
                    yield self._parents(span, group), parents

    def _parents(self, span: BlockSpan, group: int) -> _Resource:
        return self._resource(f"{span.tier} parents of group {group}")

    def _resource(self, name: str) -> _Resource:
        resource = self._resources.get(name)
        if resource is None:
            resource = self._resources[name] = _Resource(name, len(self._streams))
        return resource


def _spans(access: Access) -> Iterator[tuple[Span, bool]]:
    """Every span, and whether it is written."""
    for span in access.reads:
        yield span, False
    for span in access.writes:
        yield span, True


def _name(span: Span) -> str:
    match span:
        case BlockSpan(tier=tier, group=group):
            return f"{tier} blocks of group {group}"
        case TableRows(group=group):
            return f"rows of the table of group {group}"
        case SlotState():
            return "the state of slots"
        case StagingBuffers(lane=lane):
            return f"staging buffers of the {lane} lane"


def _cells(span: Span) -> Cells:
    match span:
        case BlockSpan(blocks=blocks):
            return blocks
        case TableRows(slots=slots) | SlotState(slots=slots):
            return slots
        case StagingBuffers(buffers=buffers):
            return buffers


def _join(clock: list[int], other: Sequence[int]) -> None:
    """What lies before either lies before both together."""
    for stream, number in enumerate(other):
        if number > clock[stream]:
            clock[stream] = number
