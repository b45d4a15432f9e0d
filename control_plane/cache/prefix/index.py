"""Which block holds which piece of which prefix."""

from collections.abc import Sequence
from itertools import repeat

from control_plane.cache.prefix.kv_events import KvEventLog, NoKvEventLog


class PrefixIndex:
    """Cached blocks by (group, ordinal within the prefix page, digest of the prefix up to that page).

    The namespace is part of the digest. A block is listed at most once.
    """

    def __init__(
        self, *, granularities: Sequence[int], prefix_granularity: int, log: KvEventLog | NoKvEventLog
    ) -> None:
        self.blocks_per_page = tuple(prefix_granularity // g for g in granularities)
        self._blocks: list[list[dict[bytes, int]]] = [[{} for _ in range(n)] for n in self.blocks_per_page]
        self._names: list[dict[int, tuple[bytes, int]]] = [{} for _ in granularities]
        self._log = log
        self._awaited: dict[bytes, None] = {}
        self._arrived: list[bytes] = []

    def find(self, group: int, ordinal: int, digest: bytes) -> int | None:
        """The block that holds this piece."""
        return self._blocks[group][ordinal].get(digest)

    def is_cached(self, group: int, block: int) -> bool:
        """Whether a block is listed."""
        return block in self._names[group]

    def name(self, group: int, block: int) -> tuple[int, bytes] | None:
        """(ordinal, digest) that a block is listed by; None: it is not."""
        named = self._names[group].get(block)
        return None if named is None else (named[1], named[0])

    def cached_blocks(self, group: int) -> list[int]:
        """Every listed block of a group, for audits."""
        return list(self._names[group])

    def insert(self, group: int, ordinal: int, digest: bytes, block: int, *, parent: bytes | None) -> None:
        """List a block. The caller has made sure that neither it nor its piece is listed.

        `parent` is the digest of the page before this one; None: there is none.
        """
        self._log.inserted(group, ordinal, digest, parent)
        self._blocks[group][ordinal][digest] = block
        self._names[group][block] = (digest, ordinal)
        if digest in self._awaited:
            del self._awaited[digest]
            self._arrived.append(digest)

    def lists_nothing_of(self, group: int, digests: Sequence[bytes]) -> bool:
        """Whether no piece of these pages is listed."""
        return all(by_digest.keys().isdisjoint(digests) for by_digest in self._blocks[group])

    def insert_pages(self, group: int, digests: Sequence[bytes], first: int, end: int, blocks: Sequence[int]) -> None:
        """List the blocks of the pages `[first, end)` of a prompt, none of which is listed, in table order."""
        pages, per_page = digests[first:end], self.blocks_per_page[group]
        for ordinal, by_digest in enumerate(self._blocks[group]):
            pieces = blocks[ordinal::per_page]
            by_digest.update(zip(pages, pieces, strict=True))
            self._names[group].update(zip(pieces, zip(pages, repeat(ordinal), strict=False), strict=True))
        self._log.inserted_pages(group, digests, first, end)
        for digest in [page for page in pages if page in self._awaited] if self._awaited else ():
            del self._awaited[digest]
            self._arrived.append(digest)

    def remove(self, group: int, block: int) -> None:
        """Unlist a block."""
        digest, ordinal = self._names[group].pop(block)
        del self._blocks[group][ordinal][digest]
        self._log.removed(group, ordinal, digest)

    def leading_pages(self, groups: Sequence[int], digests: Sequence[bytes], limit_pages: int) -> int:
        """Pages that all of `groups` hold entirely: left to right, to the first miss."""
        pieces = [by_digest for group in groups for by_digest in self._blocks[group]]
        for page in range(limit_pages):
            for by_digest in pieces:
                if digests[page] not in by_digest:
                    return page
        return limit_pages

    def blocks_between(self, group: int, digests: Sequence[bytes], first: int, end: int) -> list[int]:
        """The blocks of table rows `[first, end)`, all of which are listed."""
        ordinals, per_page = self._blocks[group], self.blocks_per_page[group]
        if per_page == 1:
            by_digest = ordinals[0]
            return [by_digest[digest] for digest in digests[first:end]]
        return [ordinals[row % per_page][digests[row // per_page]] for row in range(first, end)]

    def await_digest(self, digest: bytes) -> None:
        """Report this digest by `drain_arrived` when it is listed."""
        self._awaited[digest] = None

    def stop_awaiting(self, digest: bytes) -> None:
        """Nobody waits for this digest any more."""
        self._awaited.pop(digest, None)

    def drain_arrived(self) -> list[bytes]:
        """Awaited digests that were listed since the last call."""
        if not self._arrived:
            return []
        arrived, self._arrived = self._arrived, []
        return arrived
