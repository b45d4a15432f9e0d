"""Stamps: a number for every prefix of tokens, so that equal numbers mean computed from the same prefix."""

from collections.abc import Sequence

import numpy as np

from control_plane import CacheGroupConfig, GroupKind
from control_plane.cache.prefix.hash_chain import HashChain
from control_plane.cache.tier.host_tier import Name
from control_plane.fsm.request import Request
from control_plane.messages.columns import INT32, view
from control_plane.testing.simulated_device import Script

Stamp = int
RUBBISH: Stamp = 0
"""What nobody computed."""


class Author:
    """One request: its tokens as far as anybody asked, and the stamps of their prefixes, `stamps[n]` of `n` tokens."""

    def __init__(self, root: Stamp, chain: HashChain, prompt: list[int]) -> None:
        self.tokens = prompt
        self.stamps = [root]
        self.chain = chain


class Stamps:
    """Knows what every request will say, for it is scripted, hence what a row or a page of it must hold."""

    def __init__(self, *, script: Script, prefix_granularity: int) -> None:
        self._script = script
        self._prefix_granularity = prefix_granularity
        self._numbers: dict[object, Stamp] = {}
        self._authors: dict[int, Author] = {}
        self._growing: dict[int, None] = {}  # requests whose last page may be without a name
        self._alive: frozenset[int] = frozenset()
        self._pages: dict[bytes, tuple[int, int]] = {}  # digest -> a request with this page, and where the page ends

    def follow(self, requests: Sequence[Request]) -> None:
        """These are alive. Whoever was before and is not any more says nothing further."""
        for request in requests:
            if request.key not in self._authors:
                spec = request.spec
                chain = HashChain(namespace=spec.namespace, prefix_granularity=self._prefix_granularity)
                root = self._number(("namespace", spec.namespace))
                self._authors[request.key] = Author(root, chain, view(spec.tokens).tolist())
                self._growing[request.key] = None
        self._alive = frozenset(request.key for request in requests)

    def of_prefix(self, key: int, end: int) -> Stamp:
        """The stamp of a request's first `end` tokens."""
        author = self._authors[key]
        for position in range(len(author.tokens), end):
            author.tokens.append(self._script(key, position))
        for position in range(len(author.stamps) - 1, end):
            author.stamps.append(self._number((author.stamps[-1], author.tokens[position])))
        return author.stamps[end]

    def of_piece(self, spec: CacheGroupConfig, name: Name) -> list[Stamp]:
        """What a cached piece of this name must hold, row by row; a snapshot is one row."""
        _, ordinal, digest = name
        if digest not in self._pages:
            self._name_pages()
        key, page_end = self._pages[digest]
        first = page_end - self._prefix_granularity + ordinal * spec.block_granularity
        ends = range(first + 1, first + spec.block_granularity + 1)
        if spec.kind is GroupKind.STATE:
            ends = ends[-1:]
        return [self.of_prefix(key, end) for end in ends]

    def _name_pages(self) -> None:
        """Every page of every request, a page further than anybody may have got."""
        for key in list(self._growing):
            author = self._authors[key]
            self.of_prefix(key, len(author.stamps) + self._prefix_granularity)
            author.chain.extend(np.array(author.tokens, dtype=INT32), len(author.tokens))
            for page, digest in enumerate(author.chain.digests):
                self._pages.setdefault(digest, (key, (page + 1) * self._prefix_granularity))
            if key not in self._alive:
                del self._growing[key]

    def _number(self, what: object) -> Stamp:
        return self._numbers.setdefault(what, len(self._numbers) + 1)
