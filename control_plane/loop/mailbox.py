"""What the data plane reported since the last round."""

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from control_plane.messages import Event, ForwardFailed, LoadBackDone, Retract
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
        """What came, in order, up to the first letter that ends in a failure.

        What follows is looked at once its consequences are known: results that come later may be void.
        """
        events: list[Event] = []
        while self._letters:
            events += decode_events(self._letters.popleft())
            if self._letters and _voids_results(events[-1]):
                self._wake()
                break
        return events

    def stats(self) -> MailboxStats:
        """Its numbers."""
        return MailboxStats(len(self._letters), self._delivered)


def _voids_results(event: Event) -> bool:
    """Whether tokens that are reported later may not count because of this."""
    return isinstance(event, ForwardFailed | Retract) or (isinstance(event, LoadBackDone) and not event.success)
