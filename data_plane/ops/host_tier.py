"""Stores and load-backs: copies between the device's blocks and a host tier, beside the forward.

A stream-ordered store gathers its blocks into a staging buffer on the forward stream, first thing of its plan; the
write stream takes the buffer to the host. So the forward waits for a fast copy within the device and never for the
slow one, and the plan may give the blocks away at once. A pinned store copies straight from its blocks, on the write
stream, as the round before left them. A load-back fills a staging buffer on the load stream, which waits for no
forward; the forward stream scatters it into the blocks when their turn comes. The stores of a plan share one buffer,
and so do its load-backs.

Which blocks of the host are free, the planner knows from the acknowledgements: it loads what was acknowledged, and
stores over what nothing loads from any more. No stream orders that; the host does.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from control_plane.messages import LoadBack, Store, StoreSourceGuard
from control_plane.messages.columns import count, view
from data_plane.accesses import Accesses
from data_plane.faults import PlanFault
from data_plane.lost import Lost
from data_plane.ops.block_copies import BlockCopies
from data_plane.ops.staging import StagingBuffer, StagingRing
from data_plane.streams.base import StreamEvent, Streams, Work


class CopyInFlight:
    """A store or load-back that was handed to the streams. `error` is what its first failing step raised."""

    def __init__(self, op: int, label: str) -> None:
        self.op = op
        self.label = label
        self.error: BaseException | None = None
        self.over: StreamEvent | None = None  # a mark after a store's last step

    def attempt(self, work: Work) -> None:
        """Do a step, unless one before it failed. Nothing is raised: nobody else's work may suffer."""
        if self.error is not None:
            return
        try:
            work()
        except BaseException as error:
            self.error = error

    def has_passed(self) -> bool:
        """Whether a store is over. Never waits."""
        return self.over is None or self.over.query()

    def wait(self) -> None:
        """Wait until a store is over, one way or the other."""
        if self.over is not None:
            try:
                self.over.wait_host()
            except BaseException as error:
                self.error = self.error or error


_Begun = tuple[Store, CopyInFlight] | tuple[LoadBack, CopyInFlight]


class HostTier(Protocol):
    """Enqueues the copies of a plan on the streams it was given. Called on the forward thread, in the plan's order."""

    def store(self, round: int, stores: Sequence[Store]) -> list[CopyInFlight]:
        """Device to host. Raises PlanFault, having enqueued nothing, for blocks that do not exist."""
        ...

    def load_back(self, round: int, load_backs: Sequence[LoadBack]) -> list[CopyInFlight]:
        """Host to device; the forward stream waits for what is loaded. Raises PlanFault, having enqueued nothing."""
        ...


class NoHostTier:
    """The device's blocks are all there is."""

    def store(self, round: int, stores: Sequence[Store]) -> list[CopyInFlight]:
        """Refuse."""
        raise PlanFault(f"the plan stores {len(stores)} times, but this device has no host tier")

    def load_back(self, round: int, load_backs: Sequence[LoadBack]) -> list[CopyInFlight]:
        """Refuse."""
        raise PlanFault(f"the plan loads back {len(load_backs)} times, but this device has no host tier")


class StreamedHostTier:
    """Copies on the write and load streams, through a ring of staging buffers each.

    A copy that raises fails its own operation. A load-back that failed leaves its destinations spoiled.
    """

    def __init__(
        self,
        *,
        streams: Streams,
        copies: BlockCopies,
        accesses: Accesses,
        lost: Lost,
        block_bytes: Sequence[int],
        device_counts: Sequence[int],
        host_counts: Sequence[int],
    ) -> None:
        """Sizes have an entry a group; the counts are of blocks in each tier, block 0 too."""
        self._streams = streams
        self._copies = copies
        self._accesses = accesses
        self._lost = lost
        self._block_bytes = tuple(block_bytes)
        self._device_counts = tuple(device_counts)
        self._host_counts = tuple(host_counts)
        self._store_ring = StagingRing(copies.buffer)
        self._load_ring = StagingRing(copies.buffer)

    def store(self, round: int, stores: Sequence[Store]) -> list[CopyInFlight]:
        """Enqueue the stores; whoever waits for one waits for `over`."""
        for store in stores:
            self._check(f"store {store.op}", store, self._device_counts, self._host_counts)
        copies = [CopyInFlight(store.op, f"store {store.op} of round {round}") for store in stores]
        by_guard: dict[StoreSourceGuard, list[tuple[Store, CopyInFlight]]] = {guard: [] for guard in StoreSourceGuard}
        for store, copy in zip(stores, copies, strict=True):
            by_guard[store.guard].append((store, copy))
        if pinned := by_guard[StoreSourceGuard.PINNED_UNTIL_ACK]:
            self._store_pinned(pinned)
        if ordered := by_guard[StoreSourceGuard.STREAM_ORDERED]:
            self._store_in_order(ordered)
        return copies

    def load_back(self, round: int, load_backs: Sequence[LoadBack]) -> list[CopyInFlight]:
        """Enqueue the load-backs; they are over when the round is."""
        for load in load_backs:
            self._check(f"load-back {load.op}", load, self._host_counts, self._device_counts)
        copies = [CopyInFlight(load.op, f"load-back {load.op} of round {round}") for load in load_backs]
        if load_backs:
            self._load(list(zip(load_backs, copies, strict=True)))
        return copies

    def _store_pinned(self, stores: Sequence[tuple[Store, CopyInFlight]]) -> None:
        write = self._streams.write
        write.wait(self._streams.forward.record())
        for store, copy in stores:
            step = partial(copy.attempt, partial(self._copies.write_directly, store))
            write.enqueue(step, copy.label, self._accesses.write_directly(store))
            copy.over = write.record()

    def _store_in_order(self, stores: Sequence[tuple[Store, CopyInFlight]]) -> None:
        forward, write = self._streams.forward, self._streams.write
        buffer = self._buffer(self._store_ring, stores)
        if buffer is None:
            return
        segments = self._segments(buffer, stores)
        if buffer.released is not None:
            forward.wait(buffer.released)
        for (store, copy), segment in zip(stores, segments, strict=True):
            step = partial(copy.attempt, partial(self._copies.gather, store, segment))
            forward.enqueue(step, f"gathering for {copy.label}", self._accesses.gather(store, buffer.index))
        write.wait(forward.record())
        for (store, copy), segment in zip(stores, segments, strict=True):
            step = partial(copy.attempt, partial(self._copies.write, store, segment))
            write.enqueue(step, copy.label, self._accesses.write(store, buffer.index))
            copy.over = buffer.released = write.record()

    def _load(self, load_backs: Sequence[tuple[LoadBack, CopyInFlight]]) -> None:
        forward, load_stream = self._streams.forward, self._streams.load
        buffer = self._buffer(self._load_ring, load_backs)
        if buffer is None:
            for load, copy in load_backs:
                forward.enqueue(partial(self._spoil, load), f"giving up {copy.label}")
            return
        segments = self._segments(buffer, load_backs)
        if buffer.released is not None:
            load_stream.wait(buffer.released)
        for (load, copy), segment in zip(load_backs, segments, strict=True):
            fill = partial(copy.attempt, partial(self._copies.fill, load, segment))
            load_stream.enqueue(fill, copy.label, self._accesses.fill(load, buffer.index))
        forward.wait(load_stream.record())
        for (load, copy), segment in zip(load_backs, segments, strict=True):
            scatter = partial(self._scatter, load, copy, segment)
            forward.enqueue(scatter, f"scattering of {copy.label}", self._accesses.scatter(load, buffer.index))
        buffer.released = forward.record()

    def _scatter(self, load: LoadBack, copy: CopyInFlight, segment: Any) -> None:
        copy.attempt(partial(self._copies.scatter, load, segment))
        if copy.error is None:
            self._lost.renewed(load.group, view(load.destinations))
        else:
            self._spoil(load)

    def _spoil(self, load: LoadBack) -> None:
        self._lost.spoiled(load.group, view(load.destinations))

    def _buffer(self, ring: StagingRing, operations: Sequence[_Begun]) -> StagingBuffer | None:
        """A buffer for some operations, which fail if there is no memory for one."""
        try:
            return ring.next(self._sizes(operations))
        except MemoryError as error:
            for _, copy in operations:
                copy.error = error
            return None

    def _segments(self, buffer: StagingBuffer, operations: Sequence[_Begun]) -> list[Any]:
        """Where in the buffer each operation has its blocks."""
        return buffer.segments(self._sizes(operations))

    def _sizes(self, operations: Sequence[_Begun]) -> list[int]:
        return [count(operation.sources) * self._block_bytes[operation.group] for operation, _ in operations]

    def _check(
        self, what: str, operation: Store | LoadBack, source_counts: Sequence[int], counts: Sequence[int]
    ) -> None:
        """Raise PlanFault unless all of the operation's blocks exist and none is null."""
        group = operation.group
        if not 0 <= group < len(self._block_bytes):
            raise PlanFault(f"{what}: group {group} of {len(self._block_bytes)}")
        sources, destinations = view(operation.sources), view(operation.destinations)
        if len(sources) != len(destinations):
            raise PlanFault(f"{what}: {len(sources)} sources and {len(destinations)} destinations")
        for name, blocks, limit in (
            ("source", sources, source_counts[group]),
            ("destination", destinations, counts[group]),
        ):
            if len(blocks) and not (blocks.min() > 0 and blocks.max() < limit):
                wrong = next(int(block) for block in blocks if not 0 < block < limit)
                reason = "is null" if wrong == 0 else f"is not among the {limit} there are"
                raise PlanFault(f"{what}: group {group}: {name} block {wrong} {reason}")
