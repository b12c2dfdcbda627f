"""Carrying out the eviction policy: which segments are given up, one after another."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from anchorline.cache.policy import keep_value
from anchorline.cache.tree import Absence, Segment, SegmentTree


class Victims:
    """The droppable segments of a tree, least valuable first, leaves before their parents.

    The order is worked out when the first one is asked for. Short-lived: made for one allocation.
    """

    def __init__(self, tree: SegmentTree) -> None:
        self._tree = tree
        self._heap: list[tuple[float, int, Segment]] | None = None
        self._order = count()

    def drop_next(self) -> bool:
        """Give up the least valuable segment that nothing holds; False when there is none."""
        if self._heap is None:
            self._heap = [self._entry(node) for node in self._tree if node.is_droppable]
            heapify(self._heap)
        while self._heap:
            _, _, node = heappop(self._heap)
            if not node.is_droppable:
                continue
            self._tree.drop(node, Absence.EVICTED)
            if node.parent is not None and node.parent.is_droppable:
                heappush(self._heap, self._entry(node.parent))
            return True
        return False

    def _entry(self, node: Segment) -> tuple[float, int, Segment]:
        return keep_value(node, tick=self._tree.tick), next(self._order), node
