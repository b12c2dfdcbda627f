"""Write-behind to the disk tier: what of a saved history gets a file of its own.

    path       root ──|=== head ===|== turn ==|── side call ──
    written           |=== head ===|== turn ==|                 rows as they were exported, states at their ends

A record is the rows of one export, whole, so that a write copies nothing; those before it are written first. What
nobody may come back to (side calls, guesses) is left out, unless something pinned or of another class lies behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.rows import Exported, Rows
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.stored import StoredIndex
from anchorline.disk.record import RecordKind, SegmentRecord, SegmentStore, record_key
from anchorline.llama.interface import TokenArray

Post: TypeAlias = Callable[[Callable[[], None]], None]
"""Lets a call be made on the engine thread, between two steps; for any thread."""

_NO_TOKENS = np.empty(0, dtype=np.int32)


class Spiller:
    """Hands what is kept in the host tier to the store. Owned by the engine thread."""

    def __init__(self, index: StoredIndex, store: SegmentStore, post: Post) -> None:
        self.pending_writes = 0
        self._index = index
        self._store = store
        self._post = post

    def write_path(self, path: Sequence[Segment]) -> None:
        """Queue what is not on disk yet of ``path``, the segments of one history from the root on.

        It ends where the queue is full or the rows before are not on disk: what lies behind could not be used.
        """
        worthy = [index for index, node in enumerate(path) if node.call_class is not CallClass.SIDE or node.pins]
        for rows, run in groupby(path[: worthy[-1] + 1] if worthy else (), key=lambda node: node.rows):
            nodes = list(run)
            if any(node.stored is None for node in nodes) and not (rows and self._write_rows(rows, nodes[0])):
                return
            if not all(self._write_state(node) for node in nodes):
                return

    def _write_rows(self, rows: Rows, node: Segment) -> bool:
        """Queue the rows that ``node`` views, with all other nodes that do; whether they will be on disk."""
        line = list(viewers_of(rows, node))
        before = line[0].parent
        assert before is not None
        parent = None if before.stored is None else before.stored.record.key
        if before.parent is not None and parent is None:
            return False
        if (line[0].start, line[-1].end) != (rows.start, rows.end):
            return False  # whose the rest of the bytes was is not known any more
        tokens = np.concatenate([node.tokens for node in line])
        record = _record(RecordKind.ROWS, parent, rows.start, line, tokens, rows)
        if not self._write(record, rows):
            return False
        self._index.add(record, line, is_written=False)
        return True

    def _write_state(self, node: Segment) -> bool:
        """Queue the state of ``node`` where it has one that is not on disk; False when there is no place for it."""
        if node.state is None or node.stored_state is not None:
            return True
        assert node.stored is not None
        record = _record(RecordKind.STATE, node.stored.record.key, node.end, [node], _NO_TOKENS, node.state)
        if not self._write(record, node.state):
            return False
        self._index.add_state(record, node, is_written=False)
        return True

    def _write(self, record: SegmentRecord, exported: Exported) -> bool:
        key = record.key

        def done(is_there: bool) -> None:
            self._post(lambda: self._written(key, exported, is_there=is_there))

        if not self._store.write(record, exported.memory, done):
            return False
        exported.hold()
        self.pending_writes += 1
        return True

    def _written(self, key: bytes, exported: Exported, *, is_there: bool) -> None:
        self.pending_writes -= 1
        exported.let_go()
        stored = self._index.find(key)
        if not is_there:
            self._index.lose([key], Absence.EVICTED)
        elif stored is None:
            self._store.discard([key])  # it was let go while it was being written
        else:
            stored.is_written = True


def viewers_of(rows: Rows, node: Segment) -> Iterator[Segment]:
    """The nodes of one history that view ``rows``, parents first; ``node`` is one of them."""
    while node.parent is not None and node.parent.rows is rows:
        node = node.parent
    below: Segment | None = node
    while below is not None:
        yield below
        below = next((child for child in below.offspring() if child.rows is rows), None)


def _record(
    kind: RecordKind,
    parent: bytes | None,
    start: int,
    line: Sequence[Segment],
    tokens: TokenArray,
    exported: Exported,
) -> SegmentRecord:
    """The record of what ``line`` holds from ``start`` on."""
    end, owner = line[-1].end, line[-1].owner
    state = line[-1].state
    return SegmentRecord(
        kind=kind,
        key=record_key(kind, parent=parent, start=start, end=end, owner=owner, tokens=tokens),
        parent=parent,
        start=start,
        end=end,
        owner=owner,
        tokens=tokens,
        payload_bytes=exported.nbytes,
        call_class=max(node.call_class for node in line),
        ends_reply=kind is RecordKind.STATE and state is not None and state.ends_reply,
    )
