"""Meets the fences of a device at work, hides one from the order checker, or leaves it out."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from data_plane.ops import host_tier
from data_plane.ops.staging import StagingRing
from data_plane.streams.base import NO_BLOCKS, Access, StreamEvent, Work
from data_plane.streams.ordered_streams import STREAM_NAMES, OrderedEvent, OrderedStream

_DETOUR = STREAM_NAMES.index("load")
"""Where a step of the forward stream is, for the checker, that is not in that stream's order."""


class Fences:
    """Stands between the observed streams and their checker.

    The checker hears nothing of the `hidden` fences, while the work itself stays in order. Those that are `left_out` do
    not hold up the work either; that can be done with waits only.
    """

    def __init__(self, *, hidden: Collection[str] = (), left_out: Collection[str] = ()) -> None:
        self.met: Counter[str] = Counter()
        self._hidden = frozenset((*hidden, *left_out))
        self._left_out = frozenset(left_out)
        self._sources: dict[int, tuple[OrderedEvent, str]] = {}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """As long as this lasts. A lane has one staging buffer, which is needed again while it is in use."""
        own = {
            (OrderedStream, "enqueue"): self._enqueue,
            (OrderedStream, "record"): self._record,
            (OrderedStream, "wait"): self._wait,
            (OrderedEvent, "query"): self._query,
            (OrderedEvent, "wait_host"): self._wait_host,
        }
        before = {place: getattr(*place) for place in own}
        try:
            for (owner, name), method in own.items():
                setattr(owner, name, _method(method, before[owner, name]))
            with patch.object(host_tier, "StagingRing", partial(StagingRing, count=1)):
                yield
        finally:
            for (owner, name), method in before.items():
                setattr(owner, name, method)

    def _holds(self, name: str) -> bool:
        self.met[name] += 1
        return name not in self._hidden

    def _enqueue(self, inner: Any, stream: Any, work: Work, label: str, access: Access = NO_BLOCKS) -> None:
        step = kind_of_step(label)
        is_watched = stream.name == "forward" and (access.reads or access.writes)
        has_before = not is_watched or self._holds(f"forward stream: what came before {step}")
        has_after = not is_watched or self._holds(f"forward stream: what comes after {step}")
        if has_before and has_after:
            inner(stream, work, label, access)
            return
        checker, index = stream._checker, stream._index
        if has_before:
            checker.waited(_DETOUR, checker.recorded(index))
        checker.enqueued(_DETOUR, label, access)
        if has_after:
            checker.waited(index, checker.recorded(_DETOUR))
        stream._inner.enqueue(work, label, access)

    def _record(self, inner: Any, stream: Any) -> OrderedEvent:
        event: OrderedEvent = inner(stream)
        self._sources[id(event)] = (event, stream.name)
        return event

    def _wait(self, inner: Any, stream: Any, event: OrderedEvent) -> None:
        name = f"{_place()}: {stream.name} waits for {self._source(event)}"
        if self._holds(name):
            inner(stream, event)
        elif name not in self._left_out:
            stream._inner.wait(event.inner)

    def _query(self, inner: Any, event: OrderedEvent) -> bool:
        name = f"{_place()}: the host asks for {self._source(event)}"
        if self._holds(name):
            return bool(inner(event))
        return name in self._left_out or event.inner.query()

    def _wait_host(self, inner: Any, event: OrderedEvent) -> None:
        name = f"{_place()}: the host waits for {self._source(event)}"
        if self._holds(name):
            inner(event)
        elif name not in self._left_out:
            event.inner.wait_host()

    def _source(self, event: StreamEvent) -> str:
        return self._sources[id(event)][1]


def kind_of_step(label: str) -> str:
    """A step without its numbers."""
    return " ".join(word for word in label.partition(" of round ")[0].split() if not word.isdigit())


def _method(own: Any, inner: Any) -> Callable[..., Any]:
    return lambda self, *arguments, **named: own(inner, self, *arguments, **named)


def _place() -> str:
    """The function of the data plane that waits."""
    frame = sys._getframe(3)
    return frame.f_code.co_qualname
