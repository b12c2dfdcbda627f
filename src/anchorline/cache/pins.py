"""Pins of head anchors: named promises that a segment, and with it its parents, stays.

Pins are bounded. When they exceed their limit the least recently used are given up first; what
was pinned then stays as long as eviction lets it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from anchorline.cache.tree import Segment


@dataclass(frozen=True, slots=True)
class PinName:
    """A pin's name: the tool fingerprint, the digest of the head's ids it was rendered to, and whose segment it is."""

    tool_fingerprint: str
    head_digest: str
    owner: str | None


class HeadPins:
    """The pinned head anchors, least recently used first."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._pins: OrderedDict[PinName, Segment] = OrderedDict()
        self.released = 0

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, name: PinName) -> bool:
        return name in self._pins

    def pin(self, name: PinName, segment: Segment) -> bool:
        """Pin ``segment``, or refresh its pin; give up older pins past the limit.

        False, with nothing pinned, when the segment's own path is larger than the limit.
        """
        held = self._pins.pop(name, None)
        if held is not None:
            held.pins -= 1
        if _path_bytes([segment]) > self._limit_bytes:
            return False
        segment.pins += 1
        self._pins[name] = segment
        while self.pinned_bytes > self._limit_bytes:
            self.release_oldest()
        return True

    def forget_ghosts(self) -> None:
        """Remove pins whose segment lost its rows, as after a failed restore."""
        for name in [name for name, segment in self._pins.items() if segment.rows is None]:
            self._pins.pop(name).pins -= 1

    def release_oldest(self) -> bool:
        """Give up the pin used longest ago; False when there is none."""
        if not self._pins:
            return False
        _, segment = self._pins.popitem(last=False)
        segment.pins -= 1
        self.released += 1
        return True

    @property
    def pinned_bytes(self) -> int:
        """Bytes of the pinned segments and their parents, each counted once."""
        return _path_bytes(list(self._pins.values()))


def _path_bytes(segments: list[Segment]) -> int:
    counted: dict[int, int] = {}
    for segment in segments:
        node: Segment | None = segment
        while node is not None and id(node) not in counted:
            counted[id(node)] = node.kept_bytes
            node = node.parent
    return sum(counted.values())
