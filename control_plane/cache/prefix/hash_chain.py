"""The identity of a prefix: a chain of SHA-256 digests, one a prefix page (R4.1).

A page's digest covers the page before it, so equal digests mean equal prefixes. Every part is framed by its length, so
no two different inputs run together into the same bytes.
"""

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from control_plane.messages.columns import Int32s

_frame = struct.Struct("<I")
_BEFORE_DIGEST = _frame.pack(hashlib.sha256().digest_size)


def chain_root(namespace: str) -> bytes:
    """What the first page follows: requests of different namespaces share nothing."""
    encoded = namespace.encode()
    return hashlib.sha256(b"tokenspeed prefix chain" + _frame.pack(len(encoded)) + encoded).digest()


class NoHashChain:
    """The chain of a request when nothing is cached: no page has a name."""

    digests: Sequence[bytes] = ()

    def extend(self, tokens: Int32s, end: int) -> None:
        """Hash nothing."""


class HashChain:
    """The digests of one request's completed prefix pages. Grows with its tokens; no page is hashed twice."""

    def __init__(self, *, namespace: str, prefix_granularity: int) -> None:
        self._prefix_granularity = prefix_granularity
        self._root = chain_root(namespace)
        self._before_tokens = _frame.pack(prefix_granularity) + _frame.pack(4 * prefix_granularity)
        self.digests: list[bytes] = []

    def extend(self, tokens: Int32s, end: int) -> None:
        """Hash the pages that `tokens[:end]` completes. `tokens` is the whole request, contiguous."""
        digests = self.digests
        page_count = end // self._prefix_granularity
        if len(digests) >= page_count:
            return
        page_bytes = 4 * self._prefix_granularity
        begin_bytes = len(digests) * page_bytes
        data = tokens[: page_count * self._prefix_granularity].view(np.uint8).data
        before = digests[-1] if digests else self._root
        sha256, before_tokens = hashlib.sha256, self._before_tokens
        for begin in range(begin_bytes, page_count * page_bytes, page_bytes):
            # One call a page: to copy 256 bytes costs less than to feed the digest twice.
            before = sha256(_BEFORE_DIGEST + before + before_tokens + data[begin : begin + page_bytes]).digest()
            digests.append(before)
