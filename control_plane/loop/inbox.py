"""What callers asked since the last round: submissions, and ends that they wish for."""

from msgspec import Struct

from control_plane.loop.outbox import OutputStream
from control_plane.messages import Abort, Finish, FinishReason


class InboxStats(Struct, frozen=True):
    """What waits to be taken."""

    submissions: int
    ends: int


class Inbox:
    """Filled and emptied on the loop's thread."""

    def __init__(self) -> None:
        self._submissions: list[OutputStream] = []
        self._ends: list[tuple[OutputStream, FinishReason]] = []

    def submit(self, stream: OutputStream) -> None:
        """A request to hand in."""
        self._submissions.append(stream)

    def end(self, stream: OutputStream, reason: FinishReason) -> None:
        """A request whose caller wants no more of it."""
        self._ends.append((stream, reason))

    def take_submissions(self) -> list[OutputStream]:
        """Streams of new requests, in order."""
        taken, self._submissions = self._submissions, []
        return taken

    def take_ends(self) -> list[Abort | Finish]:
        """Aborts and finishes by key. Taken after submissions, which give the keys; who has none never entered."""
        taken, self._ends = self._ends, []
        return [
            Abort(stream.key) if reason is FinishReason.ABORT else Finish(stream.key, reason)
            for stream, reason in taken
            if stream.key
        ]

    def stats(self) -> InboxStats:
        """Its numbers."""
        return InboxStats(len(self._submissions), len(self._ends))
