"""Exported bytes in the host tier: rows of a span, and states."""

from __future__ import annotations

from collections.abc import Callable


class State:
    """What a stateful model needs to resume at one position; held by the segment that ends there."""

    __slots__ = ("_free", "ends_reply", "memory")

    def __init__(self, memory: memoryview, free: Callable[[], None], *, ends_reply: bool = False) -> None:
        self.memory = memory
        self.ends_reply = ends_reply
        """Captured where a stream ended, not at a cut of its prompt."""
        self._free = free

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    def release(self) -> None:
        """Free the bytes; must be called once."""
        self._free()


class Rows:
    """One exported span of rows, of which nodes view parts. Models without rows have empty ones."""

    __slots__ = ("_free", "end", "memory", "start", "viewed_tokens")

    def __init__(self, memory: memoryview, start: int, end: int, free: Callable[[], None]) -> None:
        self.memory = memory
        self.start = start
        self.end = end
        self.viewed_tokens = 0
        """Of all nodes together; parts that nobody views any more keep their bytes until the last view goes."""
        self._free = free

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    @property
    def tokens(self) -> int:
        return self.end - self.start

    def view(self, tokens: int) -> Rows:
        """Count a view of so many tokens."""
        self.viewed_tokens += tokens
        assert self.viewed_tokens <= self.tokens
        return self

    def release(self, tokens: int) -> None:
        """Give up a view of so many tokens; the last one frees the bytes."""
        assert 0 < tokens <= self.viewed_tokens
        self.viewed_tokens -= tokens
        if self.viewed_tokens == 0:
            self._free()
