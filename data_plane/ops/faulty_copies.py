"""Copies between the tiers that fail when they are told to, through the interface of all of them."""

from collections.abc import Container
from enum import StrEnum
from typing import Any, TypeVar

from msgspec.structs import replace

from control_plane.messages import LoadBack, Store
from control_plane.messages.columns import count, type_bytes
from data_plane.model.faulty import InjectedFault
from data_plane.ops.block_copies import BlockCopies

Operation = TypeVar("Operation", Store, LoadBack)


class CopyStep(StrEnum):
    """The steps of a store (stream-ordered: the first two; pinned: the third) and of a load-back (the last two)."""

    GATHER = "gather"
    WRITE = "write"
    WRITE_DIRECTLY = "write directly"
    FILL = "fill"
    SCATTER = "scatter"


class FaultyCopies:
    """`inner`, but the operations in `fail_ops` raise InjectedFault at each of `steps`, when half of it is done.

    `fail_ops` is asked at every step, so it may be a set that grows, or decide by a seed.
    """

    def __init__(
        self, inner: BlockCopies, *, fail_ops: Container[int], steps: Container[CopyStep] = tuple(CopyStep)
    ) -> None:
        self._inner = inner
        self._fail_ops = fail_ops
        self._steps = steps

    def buffer(self, size_bytes: int) -> Any:
        """Memory of the inner copies."""
        return self._inner.buffer(size_bytes)

    def gather(self, store: Store, buffer: Any) -> None:
        """Gather, or raise InjectedFault."""
        if self._fails(store.op, CopyStep.GATHER):
            self._inner.gather(_half(store), buffer)
            _fail(store.op, CopyStep.GATHER)
        self._inner.gather(store, buffer)

    def write(self, store: Store, buffer: Any) -> None:
        """Write, or raise InjectedFault."""
        if self._fails(store.op, CopyStep.WRITE):
            self._inner.write(_half(store), buffer)
            _fail(store.op, CopyStep.WRITE)
        self._inner.write(store, buffer)

    def write_directly(self, store: Store) -> None:
        """Write, or raise InjectedFault."""
        if self._fails(store.op, CopyStep.WRITE_DIRECTLY):
            self._inner.write_directly(_half(store))
            _fail(store.op, CopyStep.WRITE_DIRECTLY)
        self._inner.write_directly(store)

    def fill(self, load: LoadBack, buffer: Any) -> None:
        """Fill, or raise InjectedFault."""
        if self._fails(load.op, CopyStep.FILL):
            self._inner.fill(_half(load), buffer)
            _fail(load.op, CopyStep.FILL)
        self._inner.fill(load, buffer)

    def scatter(self, load: LoadBack, buffer: Any) -> None:
        """Scatter, or raise InjectedFault."""
        if self._fails(load.op, CopyStep.SCATTER):
            self._inner.scatter(_half(load), buffer)
            _fail(load.op, CopyStep.SCATTER)
        self._inner.scatter(load, buffer)

    def _fails(self, op: int, step: CopyStep) -> bool:
        return step in self._steps and op in self._fail_ops


def _half(operation: Operation) -> Operation:
    """The same for the first half of the blocks."""
    kept_bytes = count(operation.sources) // 2 * type_bytes
    return replace(operation, sources=operation.sources[:kept_bytes], destinations=operation.destinations[:kept_bytes])


def _fail(op: int, step: CopyStep) -> None:
    raise InjectedFault(f"the {step} of operation {op} was told to fail")
