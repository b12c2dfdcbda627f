"""Finding fixed texts in a stream: what may be the beginning of one is held back until that is decided."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Beginnings:
    """Tells how much of a text's end may be the beginning of one of some fixed texts."""

    __slots__ = ("_beginnings", "_last_characters", "_longest")

    def __init__(self, texts: Iterable[str]) -> None:
        self._beginnings = frozenset(text[:end] for text in texts for end in range(1, len(text)))
        self._last_characters = frozenset(beginning[-1] for beginning in self._beginnings)
        self._longest = max(map(len, self._beginnings), default=0)

    def tail(self, buffer: str, start: int = 0) -> int:
        """Length of the longest tail of ``buffer[start:]`` that begins a text without completing it."""
        if len(buffer) == start or buffer[-1] not in self._last_characters:
            return 0
        for length in range(min(len(buffer) - start, self._longest), 0, -1):
            if buffer[-length:] in self._beginnings:
                return length
        return 0


class Markers:
    """Fixed texts none of which contains another, so that the leftmost one found is always the right one."""

    __slots__ = ("_beginnings", "_pattern", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(dict.fromkeys(texts))
        assert all(self.texts), "an empty marker would be everywhere"
        assert not any(a in b for a in self.texts for b in self.texts if a != b), "a marker contains another"
        self._pattern = re.compile("|".join(map(re.escape, self.texts)) if self.texts else r"(?!)")
        self._beginnings = Beginnings(self.texts)

    def search(self, buffer: str, start: int) -> re.Match[str] | None:
        """The first marker at or behind ``start``."""
        return self._pattern.search(buffer, start)

    def held(self, buffer: str, start: int) -> int:
        """How many characters at the end of ``buffer[start:]`` may be the beginning of a marker."""
        return self._beginnings.tail(buffer, start)
