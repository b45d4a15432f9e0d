"""Where the two halves of a request meet: pages are copied when both are there, and both sides are told the outcome."""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from threading import Lock

from msgspec.structs import replace

from control_plane.errors import ConfigError
from control_plane.messages import Event, RemotePrefillDone, TransferFailed, TransferSucceeded
from data_plane.ops.remote import DeviceParts
from data_plane.transfer.ends import DecodeEnd, PrefillEnd, WrapPages
from data_plane.transfer.pages import Half, Page, pages_between


class Side(StrEnum):
    """Which of the two devices."""

    PREFILL = "prefill"
    DECODE = "decode"


_Letters = list[tuple[Side, Event]]


class _Meeting:
    """One request under its keys on both sides, from their pairing to the end of its transfer."""

    def __init__(self, keys: dict[Side, int]) -> None:
        self.keys = keys
        self.halves: dict[Side, Half] = {}
        self.pages: deque[Page] | None = None  # None: not known before both halves are ready
        self.failure: str | None = None
        self.is_copying = False

    @property
    def is_over(self) -> bool:
        """Whether no page will be touched any more. Never while one is."""
        return not self.is_copying and (self.failure is not None or (self.pages is not None and not self.pages))

    def letters(self) -> _Letters:
        """What the sides are told. One whose plan has not named the request yet is at its first attempt."""
        if self.failure is None:
            source, destination = self.halves[Side.PREFILL], self.halves[Side.DECODE]
            return [
                (Side.DECODE, RemotePrefillDone(destination.key, destination.attempt, source.tokens)),
                (Side.PREFILL, TransferSucceeded(source.key, source.attempt)),
            ]
        attempts = {side: self.halves[side].attempt if side in self.halves else 0 for side in Side}
        return [(side, TransferFailed(key, attempts[side], self.failure)) for side, key in self.keys.items()]


class Rendezvous:
    """Between a device that prefills and one that decodes. `step` is called by one thread at a time, the rest by any.

    Both devices are built with an end of it (`build_device(..., remote=rendezvous.prefill_end)`). A transfer that fails
    ends for both sides at once, and never while a page is being read or written. Close it before the devices.
    """

    def __init__(self, *, wake: Callable[[], None] = lambda: None, wrap: WrapPages = lambda inner: inner) -> None:
        """`wake` is called whenever `step` may have something to do. `wrap` may stand around what writes pages, to make
        it fail.
        """
        self._wake = wake
        self._wrap = wrap
        self._lock = Lock()
        self._meetings: dict[tuple[Side, int], _Meeting] = {}
        self._running: list[_Meeting] = []
        self._prefill_end: PrefillEnd | None = None
        self._decode_end: DecodeEnd | None = None

    def prefill_end(self, parts: DeviceParts) -> PrefillEnd:
        """The `Remote` of the device that prefills. Raises ConfigError when the other's pages are not like its own."""
        assert self._prefill_end is None, "a rendezvous has one device that prefills"
        end = PrefillEnd(parts, lambda half: self._arrived(Side.PREFILL, half))
        _check_layouts(end, self._decode_end)
        self._prefill_end = end
        return end

    def decode_end(self, parts: DeviceParts) -> DecodeEnd:
        """The `Remote` of the device that decodes. Raises ConfigError when the other's pages are not like its own."""
        assert self._decode_end is None, "a rendezvous has one device that decodes"
        end = DecodeEnd(parts, lambda half: self._arrived(Side.DECODE, half), self._wrap)
        _check_layouts(self._prefill_end, end)
        self._decode_end = end
        return end

    def pair(self, *, prefill_key: int, decode_key: int) -> None:
        """These are the same request. To be said before either scheduler is told that it is bootstrapped."""
        meeting = _Meeting({Side.PREFILL: prefill_key, Side.DECODE: decode_key})
        with self._lock:
            for each in meeting.keys.items():
                assert each not in self._meetings, f"request {each[1]} is paired already where it is to {each[0]}"
                self._meetings[each] = meeting

    def give_up(self, side: Side, key: int, message: str) -> None:
        """This side's engine ended a request: both are told as soon as no page is being touched.

        To be called for every request that ends, whatever the reason. After its transfer that does nothing.
        """
        with self._lock:
            meeting = self._meetings.get((side, key))
            letters = [] if meeting is None else self._fail(meeting, message)
        self._send(letters)

    def close(self, message: str = "the transfers were closed") -> None:
        """Every request that is paired is given up, as when a device stops."""
        with self._lock:
            letters = [letter for each in list(self._meetings.values()) for letter in self._fail(each, message)]
        self._send(letters)

    @property
    def paired(self) -> int:
        """Requests whose transfer has not ended."""
        return len(self._meetings) // 2

    @property
    def running(self) -> tuple[int, ...]:
        """Requests that `step` could advance, by their key where they are decoded, in the order in which they came."""
        with self._lock:
            return tuple(each.keys[Side.DECODE] for each in self._running if not each.is_copying)

    def step(self, decode_key: int | None = None) -> bool:
        """Copy one page of this request, or of the oldest that is running, and wait for it. False: there is none."""
        with self._lock:
            meeting = self._choose(decode_key)
            if meeting is None:
                return False
            meeting.is_copying = True
        failure = None
        try:
            self._copy_page(meeting)
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"
        with self._lock:
            meeting.is_copying = False
            if failure is not None:
                letters = self._fail(meeting, failure)
            else:
                letters = self._conclude(meeting)
        self._send(letters)
        return True

    def _arrived(self, side: Side, half: Half) -> None:
        """A plan named a request. One that is given up already, or that nobody paired, has no peer."""
        letters: _Letters = []
        with self._lock:
            meeting = self._meetings.get((side, half.key))
            if meeting is None or side in meeting.halves:
                letters.append((side, TransferFailed(half.key, half.attempt, "its peer has given it up")))
            else:
                meeting.halves[side] = half
                if len(meeting.halves) == len(Side):
                    self._running.append(meeting)
        self._send(letters)
        self._wake()

    def _choose(self, decode_key: int | None) -> _Meeting | None:
        for meeting in self._running:
            if not meeting.is_copying and decode_key in (None, meeting.keys[Side.DECODE]):
                return meeting
        return None

    def _copy_page(self, meeting: _Meeting) -> None:
        source, destination = meeting.halves[Side.PREFILL], meeting.halves[Side.DECODE]
        if meeting.pages is None:
            source.wait()
            destination.wait()
            meeting.pages = deque(pages_between(source, destination))
        if meeting.pages:
            assert self._prefill_end is not None, "pages are to be read, but no device prefills"
            assert self._decode_end is not None, "pages are to be written, but no device decodes"
            page = meeting.pages.popleft()
            self._decode_end.write(page.group, page.destination, self._prefill_end.read(page.group, page.source))

    def _fail(self, meeting: _Meeting, message: str) -> _Letters:
        """The first reason is the one that is told."""
        if meeting.failure is None:
            meeting.failure = message
        return self._conclude(meeting)

    def _conclude(self, meeting: _Meeting) -> _Letters:
        """If it is over nobody knows it any more: what the sides are told then, once."""
        first_key = (Side.PREFILL, meeting.keys[Side.PREFILL])
        if not meeting.is_over or self._meetings.get(first_key) is not meeting:
            return []
        for each in meeting.keys.items():
            del self._meetings[each]
        if meeting in self._running:
            self._running.remove(meeting)
        return meeting.letters()

    def _send(self, letters: _Letters) -> None:
        """Without the lock: whoever reads them may come back."""
        for side, event in letters:
            end = self._prefill_end if side is Side.PREFILL else self._decode_end
            assert end is not None, f"{event} is to be told, but no device is there to {side}"
            end.tell(event)


def _check_layouts(prefill: PrefillEnd | None, decode: DecodeEnd | None) -> None:
    """Blocks of the two devices must be the same bytes. How many fill a parent may differ."""
    if prefill is None or decode is None:
        return
    ours, theirs = ([replace(group, packing=1) for group in end.groups] for end in (prefill, decode))
    if ours != theirs:
        raise ConfigError(
            [
                f"the groups of the device that prefills are {ours}, those of the device that decodes {theirs}: "
                f"give both the same model and prefix_granularity"
            ]
        )
