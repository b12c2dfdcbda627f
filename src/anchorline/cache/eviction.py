"""Carrying out the eviction policy: what is given up, one thing after another."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from anchorline.cache.policy import KeepValue, Moment
from anchorline.cache.rows import Rows
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.tree import SegmentTree


class Victims:
    """What may go from a tree: states that later ones stand in for, then rows, leaves before their parents.

    Rows go as they were exported, with all segments that view them, since their bytes are free only
    with the last; they are worth as much as the best of those. The order is worked out when the first
    one is asked for. Short-lived: made for one allocation.
    """

    def __init__(self, tree: SegmentTree, keep_value: KeepValue, moment: Moment) -> None:
        self._tree = tree
        self._keep_value = keep_value
        self._moment = moment
        self._order = count()
        self._states: deque[Segment] | None = None
        self._viewers: dict[Rows, list[Segment]] = {}
        """Parents before children."""
        self._heap: list[tuple[float, int, Rows]] = []

    def drop_next(self, *, below: float = math.inf) -> bool:
        """Give up the least valuable thing that nothing holds; False when none is worth less than ``below``."""
        if self._states is None:
            self._states = self._find()
        while self._states:
            node = self._states.popleft()
            if is_inner_state(node):
                self._tree.drop_state(node)
                return True
        while self._heap and self._heap[0][0] < below:
            _, _, rows = heappop(self._heap)
            viewers = self._viewers.pop(rows)
            if not may_go(viewers):
                continue
            for node in reversed(viewers):
                self._tree.drop(node, Absence.EVICTED)
            parent = viewers[0].parent
            if parent is not None and parent.rows is not None:
                self._offer(parent.rows)
            return True
        return False

    def _find(self) -> deque[Segment]:
        """Fill the heap; the states that go before it, those used longest ago first."""
        for node in sorted(self._tree.kept, key=lambda node: node.start):
            assert node.rows is not None
            self._viewers.setdefault(node.rows, []).append(node)
        for rows in list(self._viewers):
            self._offer(rows)
        heapify(self._heap)
        inner = [node for node in self._tree.kept if is_inner_state(node)]
        return deque(sorted(inner, key=lambda node: (node.last_used, node.end)))

    def _offer(self, rows: Rows) -> None:
        viewers = self._viewers[rows]
        if may_go(viewers):
            value = max(self._keep_value(node, self._moment) for node in viewers)
            heappush(self._heap, (value, next(self._order), rows))


def may_go(viewers: Sequence[Segment]) -> bool:
    """Whether nobody holds any of the segments that view some rows, and nothing else that is kept depends on them.

    What is being written to disk stays until it is there.
    """
    return not any(_is_written(node) for node in viewers) and all(
        node.leases == 0
        and node.pins == 0
        and all(child.rows is None or child.rows is node.rows for child in node.offspring())
        for node in viewers
    )


def is_inner_state(node: Segment) -> bool:
    """Whether ``node`` has a state that may go before any rows: not pinned, with kept rows behind it.

    A lease holds rows that are about to be built upon; for that no old state is needed.
    """
    if node.state is None or node.state.is_held or node.pins:
        return False
    return any(child.rows is not None for child in node.offspring())


def _is_written(node: Segment) -> bool:
    """Whether its rows or its state are being written to disk: to drop them would free nothing yet."""
    return (node.rows is not None and node.rows.is_held) or (node.state is not None and node.state.is_held)
