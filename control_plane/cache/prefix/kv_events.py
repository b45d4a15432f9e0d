"""What became known, and unknown, to the prefix cache: for routers that send prompts where their prefix is (R4.11).

One event a prefix page, named by its digest. A page counts as stored while every group that decides about prefixes
holds all of it. Changes are net: what came and went between two drains is not mentioned.
"""

from collections.abc import Sequence

from msgspec import Struct

from control_plane.config import CacheGroupConfig


class KvStored(Struct, frozen=True):
    """A page can be hit from now on. `parent` is the digest of the page before it; None: it begins a prompt."""

    digest: bytes
    parent: bytes | None


class KvRemoved(Struct, frozen=True):
    """A page cannot be hit any more."""

    digest: bytes


KvEvent = KvStored | KvRemoved


class KvEventLog:
    """Counts the pieces of every page and remembers which pages changed since the last drain."""

    def __init__(self, groups: Sequence[CacheGroupConfig], *, prefix_granularity: int) -> None:
        # Where a closed group exists it decides how far prefixes go; else a page is known by whatever ends it.
        closed = [g for g, group in enumerate(groups) if group.is_prefix_closed]
        deciding = closed or [g for g, group in enumerate(groups) if not group.replayable]
        self._pieces = {
            g: range(prefix_granularity // groups[g].block_granularity)[0 if closed else -1 :] for g in deciding
        }
        self._per_page = [prefix_granularity // group.block_granularity for group in groups]
        self._whole = sum(len(ordinals) for ordinals in self._pieces.values())
        self._held: dict[bytes, int] = {}
        self._parents: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bool] = {}  # digest -> whether it was stored at the last drain

    def inserted(self, group: int, ordinal: int, digest: bytes, parent: bytes | None) -> None:
        """A piece was listed."""
        if ordinal not in self._pieces.get(group, ()):
            return
        held = self._held.get(digest, 0) + 1
        self._held[digest] = held
        if held == self._whole:
            self._parents[digest] = parent
            self._changed.setdefault(digest, False)

    def inserted_pages(self, group: int, digests: Sequence[bytes], first: int, end: int) -> None:
        """Every piece of the pages `[first, end)` was listed."""
        for page in range(first, end):
            for ordinal in range(self._per_page[group]):
                self.inserted(group, ordinal, digests[page], digests[page - 1] if page else None)

    def removed(self, group: int, ordinal: int, digest: bytes) -> None:
        """A piece was unlisted."""
        if ordinal not in self._pieces.get(group, ()):
            return
        held = self._held.pop(digest) - 1
        if held:
            self._held[digest] = held
        if held == self._whole - 1:
            self._changed.setdefault(digest, True)

    def drain(self) -> list[KvEvent]:
        """The pages whose state differs from what the last drain left, in the order in which they first changed."""
        events: list[KvEvent] = []
        for digest, was_stored in self._changed.items():
            is_stored = self._held.get(digest) == self._whole
            if is_stored and not was_stored:
                events.append(KvStored(digest, self._parents[digest]))
            elif was_stored and not is_stored:
                events.append(KvRemoved(digest))
            if not is_stored:
                self._parents.pop(digest, None)
        self._changed.clear()
        return events


class NoKvEventLog:
    """Nobody asked."""

    def inserted(self, group: int, ordinal: int, digest: bytes, parent: bytes | None) -> None:
        """Forget it."""

    def inserted_pages(self, group: int, digests: Sequence[bytes], first: int, end: int) -> None:
        """Forget them."""

    def removed(self, group: int, ordinal: int, digest: bytes) -> None:
        """Forget it."""

    def drain(self) -> list[KvEvent]:
        """Nothing."""
        return []
