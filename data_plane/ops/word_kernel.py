"""CUDA kernels that go over whole blocks, word by word, words as wide as the blocks allow."""

from typing import Any

import numpy as np

from data_plane.cuda import load_cupy

THREADS = 256
MOST_ROWS_OF_THREADS = 64
WIDE_BYTES = 16


class WordKernel:
    """A kernel over blocks of one size: one row of thread blocks a block, each thread at words a stride apart.

    Its last argument is how many words a block has; `gridDim.y * blockDim.x` is the stride.
    """

    def __init__(self, kernel: Any, words: int) -> None:
        self._kernel = kernel
        self._words = words

    def launch(self, blocks: int, *arguments: Any) -> None:
        """On the current stream, for so many blocks (at least one)."""
        rows_of_threads = min(MOST_ROWS_OF_THREADS, -(-self._words // THREADS))
        self._kernel((blocks, rows_of_threads), (THREADS,), (*arguments, np.int64(self._words)))


def word_kernel(source: str, name: str, block_bytes: int) -> WordKernel:
    """The kernel `name` of `source`, in which `word` is the widest type that blocks of this size are made of."""
    is_wide = block_bytes % WIDE_BYTES == 0
    text = f"typedef {'uint4' if is_wide else 'unsigned char'} word;\n{source}"
    return WordKernel(load_cupy().RawKernel(text, name), block_bytes // WIDE_BYTES if is_wide else block_bytes)
