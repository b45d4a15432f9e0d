"""The two ends of a transfer: on each device, where plans name requests and where pages are read or written.

Blocks are looked up on the forward stream, between the plan's table edits and those of any later plan; a mark behind
that is waited for before the first page is touched. Pages leave on the write stream and arrive on the load stream, one
at a time, so no forward waits for more than one of them.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from control_plane.messages import Event, RemoteWork
from control_plane.messages.columns import pack, view
from control_plane.messages.wire import encode_events
from data_plane.faults import PlanFault
from data_plane.memory.pinned import host_bytes
from data_plane.ops.remote import DeviceParts
from data_plane.streams.base import Access, BlockSpan, Stream, TableRows, Tier, Work
from data_plane.transfer.page_copies import CudaPageCopies, HostPageCopies, PageCopies
from data_plane.transfer.pages import Half

Arrived = Callable[[Half], None]
WrapPages = Callable[[PageCopies], PageCopies]

log = logging.getLogger("tokenspeed.device")


class _End:
    """What both ends have in common."""

    def __init__(self, parts: DeviceParts, arrived: Arrived, wrap: WrapPages) -> None:
        self.groups = parts.groups
        self._parts = parts
        self._arrived = arrived
        make_copies = HostPageCopies if parts.device == "cpu" else CudaPageCopies
        self._copies = wrap(make_copies(parts.memory, groups=len(parts.groups)))
        self._deliver: Callable[[bytes], None] | None = None

    def start(self, deliver: Callable[[bytes], None]) -> None:
        """From now on events can be told."""
        self._deliver = deliver

    def tell(self, event: Event) -> None:
        """Deliver an event in a letter of its own. What its reader raises is logged: it is not the transfer's fault."""
        assert self._deliver is not None, f"{event} is to be told, but the device was not started"
        try:
            self._deliver(encode_events([event]))
        except BaseException as error:
            log.error("%s could not be told", event, exc_info=error)

    def _take(self, work: RemoteWork) -> None:
        """Requests of a plan; those without tokens of their own have none."""
        parts = self._parts
        slots = view(work.slots).tolist()
        if any(not 0 <= slot < parts.slots for slot in slots):
            raise PlanFault(f"remote work names the slots {slots}, of {parts.slots}")
        tokens = [pack([token]) for token in view(work.tokens).tolist()] or [b""] * len(slots)
        columns = (view(column).tolist() for column in (work.keys, work.attempts, work.begins, work.ends))
        for slot, key, attempt, begin, end, first in zip(slots, *columns, tokens, strict=True):
            half = Half(parts.groups, key=key, attempt=attempt, begin=begin, end=end, tokens=first)
            self._look_up(half, slot)
            self._arrived(half)

    def _look_up(self, half: Half, slot: int) -> None:
        forward = self._parts.streams.forward
        row = np.array([slot], dtype=np.int32)
        access = Access(reads=tuple(TableRows(group, row) for group in range(len(self.groups))))
        step = partial(half.attempt_to, partial(half.resolve, self._parts.tables, slot))
        forward.enqueue(step, f"looking up the pages of request {half.key}", access)
        half.ready = forward.record()

    def _perform(self, stream: Stream, work: Work, label: str, access: Access) -> None:
        """Do a step on a stream and wait for it. Raises what it raises; on the stream that is nobody else's error."""
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        stream.enqueue(attempt, label, access)
        stream.record().wait_host()
        if errors:
            raise errors[0]


class PrefillEnd(_End):
    """Where pages are read: `Remote` of the device that prefills."""

    def __init__(self, parts: DeviceParts, arrived: Arrived, wrap: WrapPages = lambda inner: inner) -> None:
        super().__init__(parts, arrived, wrap)
        self._page = host_bytes(max(group.block_bytes for group in parts.groups), device=parts.device)

    def prefill(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote prefills, but this device prefills for a peer")

    def decode(self, work: RemoteWork) -> None:
        """The peer reads the pages of these requests."""
        self._take(work)

    def read(self, group: int, block: int) -> Any:
        """What is in a block: uint8 [bytes of it], until the next one is read."""
        page = self._page[: self.groups[group].block_bytes]
        work = partial(self._copies.read, group, block, page)
        access = Access(reads=(_span(group, block),))
        self._perform(self._parts.streams.write, work, f"reading page {block} of group {group}", access)
        return page


class DecodeEnd(_End):
    """Where pages are written: `Remote` of the device that decodes."""

    def prefill(self, work: RemoteWork) -> None:
        """The peer writes the pages of these requests."""
        self._take(work)

    def decode(self, work: RemoteWork) -> None:
        """Refuse."""
        raise PlanFault("the plan has remote decodes, but this device decodes for a peer")

    def write(self, group: int, block: int, page: Any) -> None:
        """Put this into a block."""
        work = partial(self._copies.write, group, block, page)
        access = Access(writes=(_span(group, block),))
        self._perform(self._parts.streams.load, work, f"writing page {block} of group {group}", access)


def _span(group: int, block: int) -> BlockSpan:
    return BlockSpan(Tier.DEVICE, group, np.array([block], dtype=np.int32))
