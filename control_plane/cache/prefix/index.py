"""Which block holds which piece of which prefix: the index, and the matcher that walks it."""

from collections.abc import Sequence

from msgspec import Struct


class PrefixHit(Struct, frozen=True):
    """A prefix found in the cache: its length, its blocks in each group, and the digest that was missing after it."""

    tokens: int
    blocks: tuple[list[int], ...]
    missing: bytes | None


class PrefixIndex:
    """Cached blocks by (group, ordinal within the prefix page, digest of the prefix up to that page).

    The namespace is part of the digest. A block is listed at most once.
    """

    def __init__(self, *, granularities: Sequence[int], prefix_granularity: int) -> None:
        self._prefix_granularity = prefix_granularity
        self.blocks_per_page = tuple(prefix_granularity // g for g in granularities)
        self._blocks: list[list[dict[bytes, int]]] = [[{} for _ in range(n)] for n in self.blocks_per_page]
        self._names: list[dict[int, tuple[bytes, int]]] = [{} for _ in granularities]
        self._every_piece = [by_digest for ordinals in self._blocks for by_digest in ordinals]
        self._awaited: dict[bytes, None] = {}
        self._arrived: list[bytes] = []

    def find(self, group: int, ordinal: int, digest: bytes) -> int | None:
        """The block that holds this piece."""
        return self._blocks[group][ordinal].get(digest)

    def is_cached(self, group: int, block: int) -> bool:
        """Whether a block is listed."""
        return block in self._names[group]

    def cached_blocks(self, group: int) -> list[int]:
        """Every listed block of a group, for audits."""
        return list(self._names[group])

    def insert(self, group: int, ordinal: int, digest: bytes, block: int) -> None:
        """List a block. The caller has made sure that neither it nor its piece is listed."""
        self._blocks[group][ordinal][digest] = block
        self._names[group][block] = (digest, ordinal)
        if digest in self._awaited:
            del self._awaited[digest]
            self._arrived.append(digest)

    def remove(self, group: int, block: int) -> None:
        """Unlist a block."""
        digest, ordinal = self._names[group].pop(block)
        del self._blocks[group][ordinal][digest]

    def match(self, digests: Sequence[bytes], limit_tokens: int) -> PrefixHit:
        """The longest cached prefix of at most `limit_tokens` that every group holds: left to right, to the first miss.

        This is the rule of prefix-closed groups (R4.3). Pages beyond the limit are never looked at (R4.2).
        """
        limit_pages = min(limit_tokens // self._prefix_granularity, len(digests))
        page_count = self._matching_pages(digests, limit_pages)
        hit = digests[:page_count]
        blocks = tuple([by_digest[digest] for digest in hit for by_digest in ordinals] for ordinals in self._blocks)
        missing = digests[page_count] if page_count < limit_pages else None
        return PrefixHit(page_count * self._prefix_granularity, blocks, missing)

    def _matching_pages(self, digests: Sequence[bytes], limit_pages: int) -> int:
        for page in range(limit_pages):
            for by_digest in self._every_piece:
                if digests[page] not in by_digest:
                    return page
        return limit_pages

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
