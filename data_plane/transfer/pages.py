"""What of a prompt is transferred, and in which blocks it is on either side."""

from collections.abc import Sequence

from msgspec import Struct

from control_plane.messages.columns import Int32s
from data_plane.faults import PlanFault
from data_plane.memory.tables import HostTables
from data_plane.model.base import GroupLayout
from data_plane.streams.base import StreamEvent, Work


class Page(Struct, frozen=True):
    """One block on its way: of a group, from this block of the one device to that of the other."""

    group: int
    source: int
    destination: int


def columns_of_landing(group: GroupLayout, begin: int, end: int) -> range:
    """Where in the table stands what the first step after `end` tokens reads, if all before `begin` is there already.

    Of replayable groups nothing is there, whatever `begin` says. Whole blocks are transferred: the first may hold rows
    that nobody reads any more, the last none behind `end`.
    """
    match group.kind:
        case "full":
            first = begin
        case "sliding":
            reach = max(0, end - group.window + 1)
            first = reach if group.replayable else max(begin, reach)
        case _:
            first = end - 1  # a snapshot stands where its last token does
    if first >= end:
        return range(0)
    granularity = group.block_granularity
    return range(first // granularity, -(-end // granularity))


class Half:
    """What one side brings to a transfer: a request as its plan named it, and its blocks once its stream got there.

    `columns` says for each group where in the slot's table they stand. `tokens` follow the prompt, where they were
    sampled. `ready` is a mark behind all that the plan and those before it do to the blocks.
    """

    ready: StreamEvent

    def __init__(
        self, groups: Sequence[GroupLayout], *, key: int, attempt: int, begin: int, end: int, tokens: bytes = b""
    ) -> None:
        self.key = key
        self.attempt = attempt
        self.end = end
        self.tokens = tokens
        self.columns = tuple(columns_of_landing(group, begin, end) for group in groups)
        self._blocks: list[Int32s] = []
        self._error: BaseException | None = None

    def attempt_to(self, work: Work) -> None:
        """Do a step on the stream; what it raises is raised by `wait`, and fails nobody else's work."""
        try:
            work()
        except BaseException as error:
            self._error = error

    def resolve(self, tables: HostTables, slot: int) -> None:
        """Look the blocks up while the slot is still this request's. Raises PlanFault when one is missing."""
        for group, columns in enumerate(self.columns):
            blocks = tables.rows(group)[slot, columns.start : columns.stop].copy()
            if len(blocks) < len(columns) or not blocks.all():
                raise PlanFault(
                    f"request {self.key}, slot {slot}, group {group}: rows [{columns.start}, {columns.stop}) of the "
                    f"table are to be transferred, but they are {blocks.tolist()}"
                )
            self._blocks.append(blocks)

    def wait(self) -> None:
        """Wait until the blocks are known and ready. Raises what went wrong on the way."""
        self.ready.wait_host()
        if self._error is not None:
            raise self._error

    def block(self, group: int, column: int) -> int:
        """The block in this row of the table."""
        return int(self._blocks[group][column - self.columns[group].start])


def pages_between(source: Half, destination: Half) -> list[Page]:
    """What the destination lacks, group by group. Raises PlanFault unless the source has all of it."""
    if source.end != destination.end:
        raise PlanFault(
            f"request {source.key} has {source.end} tokens where it was prefilled and {destination.end} tokens as "
            f"request {destination.key} where it is decoded"
        )
    pages = []
    for group, (have, lacked) in enumerate(zip(source.columns, destination.columns, strict=True)):
        if lacked and not (have.start <= lacked.start and lacked.stop <= have.stop):
            raise PlanFault(f"request {source.key}, group {group}: {lacked} is asked for, and only {have} is given")
        pages += [Page(group, source.block(group, column), destination.block(group, column)) for column in lacked]
    return pages
