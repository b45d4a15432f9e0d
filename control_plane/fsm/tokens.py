"""Ranges of a request's tokens."""

from msgspec import Struct


class Window(Struct, frozen=True, gc=False):
    """The tokens `[begin, end)` that a chunk computes, and how many are fed again ahead of it (first chunks only)."""

    begin: int
    end: int
    replay_tokens: int = 0

    def next(self, chunk_tokens: int) -> "Window":
        """The window that follows this one."""
        return Window(self.end, self.end + chunk_tokens)
