"""Carrying out the eviction policy: what is given up, one thing after another."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count

from anchorline.cache.policy import keep_value
from anchorline.cache.tree import Absence, Segment, SegmentTree


class Victims:
    """What may go from a tree: states that later ones stand in for, then segments, leaves before their parents.

    The order is worked out when the first one is asked for. Short-lived: made for one allocation.
    """

    def __init__(self, tree: SegmentTree) -> None:
        self._tree = tree
        self._order = count()
        self._states: deque[Segment] | None = None
        self._heap: list[tuple[float, int, Segment]] = []

    def drop_next(self) -> bool:
        """Give up the least valuable thing that nothing holds; False when there is none."""
        if self._states is None:
            inner = [node for node in self._tree.kept if is_inner_state(node)]
            self._states = deque(sorted(inner, key=lambda node: (node.last_used, node.end)))
            self._heap = [self._entry(node) for node in self._tree.kept if node.is_droppable]
            heapify(self._heap)
        while self._states:
            node = self._states.popleft()
            if is_inner_state(node):
                self._tree.drop_state(node)
                return True
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
        return keep_value(node, tick=self._tree.tick, stateful=self._tree.stateful), next(self._order), node


def is_inner_state(node: Segment) -> bool:
    """Whether ``node`` has a state that may go before any rows: not pinned, with kept rows behind it.

    A lease holds rows that are about to be built upon; for that no old state is needed.
    """
    return node.state is not None and node.pins == 0 and any(child.rows is not None for child in node.offspring())
