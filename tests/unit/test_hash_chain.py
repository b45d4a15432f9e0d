"""The identity of a prefix (R4.1)."""

import hashlib
import struct

import numpy as np

from control_plane.cache.prefix.hash_chain import HashChain, NoHashChain, chain_root


def _tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _digests(tokens: np.ndarray, *, namespace: str = "", granularity: int = 2) -> list[bytes]:
    chain = HashChain(namespace=namespace, prefix_granularity=granularity)
    chain.extend(tokens, len(tokens))
    return chain.digests


def test_the_chain_is_sha256_over_framed_parts() -> None:
    """R4.1: previous digest, token count, tokens as little-endian u32, every part framed by its length."""
    frame = struct.Struct("<I")
    root = chain_root("")
    message = frame.pack(32) + root + frame.pack(2) + frame.pack(8) + struct.pack("<II", 5, 6)
    assert _digests(_tokens(5, 6)) == [hashlib.sha256(message).digest()]


def test_equal_digests_mean_equal_prefixes() -> None:
    """A page's digest depends on every page before it, on the namespace and on nothing else."""
    base = _digests(_tokens(1, 2, 3, 4))
    assert _digests(_tokens(1, 2, 3, 4)) == base
    assert _digests(_tokens(9, 2, 3, 4))[1] != base[1]
    assert _digests(_tokens(1, 2, 4, 3))[0] == base[0]
    assert _digests(_tokens(1, 2, 3, 4), namespace="x")[0] != base[0]
    assert len(set(base)) == 2


def test_growing_in_steps_equals_hashing_at_once() -> None:
    """Pages are hashed once, as they complete; an incomplete page has no digest."""
    tokens = np.arange(23, dtype=np.int32)
    chain = HashChain(namespace="n", prefix_granularity=4)
    for end in (3, 4, 9, 9, 15, 23):
        chain.extend(tokens, end)
        assert len(chain.digests) == end // 4
    assert chain.digests == _digests(tokens, namespace="n", granularity=4)


def test_without_a_cache_nothing_is_hashed() -> None:
    """The off twin names no page."""
    chain = NoHashChain()
    chain.extend(_tokens(1, 2, 3, 4), 4)
    assert not chain.digests
