"""Stop strings, found wherever the stream happens to be split."""

from __future__ import annotations

from collections.abc import Sequence

from anchorline.output.markers import Beginnings


class StopFinder:
    """Looks for stop strings in text that arrives in pieces.

    The hit is the stop string that is complete first; of several that end at the same character the
    longest one. So the answer needs no look-ahead and does not depend on how the text is split.
    Text that may be the beginning of a stop string is held back until that is decided.
    """

    __slots__ = ("_beginnings", "_held", "_stops", "hit")

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would stop everything"
        self._stops = tuple(dict.fromkeys(stops))
        self._beginnings = Beginnings(self._stops)
        self._held = ""
        self.hit: str | None = None
        """The stop string that was found, or None."""

    def feed(self, text: str) -> str:
        """The text that may be shown now. After a hit: nothing, ever."""
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        buffer = self._held + text
        found = self._search(buffer)
        if found is not None:
            start, self.hit = found
            self._held = ""
            return buffer[:start]
        keep = self._beginnings.tail(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """End of input: the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _search(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])
