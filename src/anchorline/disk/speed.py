"""How fast files are read and checked, smoothed over the latest reads."""

from __future__ import annotations

FADING = 0.8
"""What each read leaves of the weight of those before it."""


class ReadSpeed:
    """A mean in which large reads count for more."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._bytes = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        self._seconds = FADING * self._seconds + seconds
        self._bytes = FADING * self._bytes + nbytes

    @property
    def seconds_per_byte(self) -> float | None:
        """None until something was read."""
        return self._seconds / self._bytes if self._bytes else None
