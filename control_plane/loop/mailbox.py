"""What the data plane reported since the last round."""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from control_plane.messages import Event
from control_plane.messages.wire import decode_events


class MailboxStats(Struct, frozen=True):
    """Letters that wait, and all that ever came."""

    waiting: int
    delivered: int


class Mailbox:
    """Encoded events in from any thread, decoded events out on the loop's. Taking never waits."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._letters: deque[bytes] = deque()
        self._wake = wake
        self._delivered = 0

    def deliver(self, letter: bytes) -> None:
        """Put encoded events in and wake the loop. Called from the data plane's thread."""
        self._letters.append(letter)
        self._delivered += 1
        self._wake()

    def take(self) -> list[Event]:
        """All that came, in order."""
        events: list[Event] = []
        while self._letters:
            events += decode_events(self._letters.popleft())
        return events

    def stats(self) -> MailboxStats:
        """Its numbers."""
        return MailboxStats(len(self._letters), self._delivered)
