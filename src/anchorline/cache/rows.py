"""Exported bytes in the host tier: rows of a span, and states."""

from __future__ import annotations

from collections.abc import Callable


class Exported:
    """Bytes of the arena, freed once nobody uses them any more."""

    __slots__ = ("_free", "_holds", "memory")

    def __init__(self, memory: memoryview, free: Callable[[], None]) -> None:
        self.memory = memory
        self._free = free
        self._holds = 0

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes

    @property
    def is_held(self) -> bool:
        """Whether they stay although the tree may have let them go: they are being written to disk."""
        return self._holds > 0

    @property
    def is_used(self) -> bool:
        """Whether the tree still needs them."""
        raise NotImplementedError

    def hold(self) -> None:
        """Keep the bytes until ``let_go``, whatever becomes of the nodes."""
        self._holds += 1

    def let_go(self) -> None:
        """End one hold; the last use that ends frees the bytes."""
        assert self._holds > 0
        self._holds -= 1
        self._free_unused()

    def _free_unused(self) -> None:
        if not self._holds and not self.is_used:
            self._free()


class State(Exported):
    """What a stateful model needs to resume at one position; held by the segment that ends there."""

    __slots__ = ("_is_kept", "ends_reply")

    def __init__(self, memory: memoryview, free: Callable[[], None], *, ends_reply: bool = False) -> None:
        super().__init__(memory, free)
        self.ends_reply = ends_reply
        """Captured where a stream ended, not at a cut of its prompt."""
        self._is_kept = True

    @property
    def is_used(self) -> bool:
        return self._is_kept

    def release(self) -> None:
        """Free the bytes; must be called once."""
        assert self._is_kept
        self._is_kept = False
        self._free_unused()


class Rows(Exported):
    """One exported span of rows, of which nodes view parts. Models without rows have empty ones."""

    __slots__ = ("end", "start", "viewed_tokens")

    def __init__(self, memory: memoryview, start: int, end: int, free: Callable[[], None]) -> None:
        super().__init__(memory, free)
        self.start = start
        self.end = end
        self.viewed_tokens = 0
        """Of all nodes together; parts that nobody views any more keep their bytes until the last view goes."""

    @property
    def is_used(self) -> bool:
        return self.viewed_tokens > 0

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
        self._free_unused()
