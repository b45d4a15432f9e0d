"""Pages that are listed together are listed as if one piece came after the other (R4.7)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane import CacheGroupConfig
from control_plane.cache.prefix.hash_chain import HashChain
from control_plane.cache.prefix.index import PrefixIndex
from control_plane.cache.prefix.kv_events import KvEventLog


def digests_of(count: int) -> list[bytes]:
    """A prompt's chain of so many pages of 8 tokens."""
    chain = HashChain(namespace="", prefix_granularity=8)
    chain.extend(np.arange(count * 8, dtype=np.int32), count * 8)
    return chain.digests


@pytest.mark.parametrize("granularity", [8, 4, 2])
@given(pages=st.integers(1, 6), first=st.integers(0, 5), awaited=st.sets(st.integers(0, 5)))
def test_pages_listed_together_are_listed_as_one_by_one(
    granularity: int, pages: int, first: int, awaited: set[int]
) -> None:
    """The same blocks under the same names, the same news for routers, the same awaited digests in the same order."""
    end, per_page = first + pages, 8 // granularity
    digests = digests_of(end)
    blocks = [100 + row for row in range(pages * per_page)]
    groups = (CacheGroupConfig(id="full", block_granularity=granularity),)
    indexes = [
        PrefixIndex(granularities=[granularity], prefix_granularity=8, log=KvEventLog(groups, prefix_granularity=8))
        for _ in range(2)
    ]
    together, singly = indexes
    for index in indexes:
        assert index.lists_nothing_of(0, digests)
        for page in sorted(awaited & set(range(end))):
            index.await_digest(digests[page])
    together.insert_pages(0, digests, first, end, blocks)
    for row, block in enumerate(blocks):
        page, ordinal = first + row // per_page, row % per_page
        singly.insert(0, ordinal, digests[page], block, parent=digests[page - 1] if page else None)
    assert [together.name(0, block) for block in blocks] == [singly.name(0, block) for block in blocks]
    rows = range(first * per_page, end * per_page)
    assert together.blocks_between(0, digests, rows.start, rows.stop) == blocks
    assert singly.blocks_between(0, digests, rows.start, rows.stop) == blocks
    assert together.drain_arrived() == singly.drain_arrived()
    assert together._log.drain() == singly._log.drain()
    assert not together.lists_nothing_of(0, digests[first:])
    assert together.lists_nothing_of(0, digests[:first])
