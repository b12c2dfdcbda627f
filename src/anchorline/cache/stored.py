"""Which records of the disk tier belong to which nodes of the tree. Pure: it reads and writes no file.

    nodes     root ──|== a ==|== b ==|── c ──|        b was split off a: both view one record
    records          |===== rows ====| ^ state at the end of b

A record is found by its key; its place is told by its parent's key, its span and its ids, which the nodes take
over. Where the parent is not known nothing is: such a record is an orphan and is never used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.segment import Absence, Segment, Stored
from anchorline.cache.tree import SegmentTree
from anchorline.disk.record import RecordKind, SegmentRecord

_NO_TOKENS = np.empty(0, dtype=np.int32)


class Unattached(StrEnum):
    """Why a record that was found on disk is not used."""

    ORPHAN = "orphan"
    """The rows before it are not there."""
    CONFLICT = "conflict"
    """It does not fit to what it says it follows."""


class StoredIndex:
    """The records that the nodes of one tree can be read from. Owned by the engine thread."""

    def __init__(self, tree: SegmentTree) -> None:
        self._tree = tree
        self._records: dict[bytes, Stored] = {}
        self.unwanted: list[bytes] = []
        """Keys of records that are not worth keeping any more; whoever deletes files takes them out."""
        self.unattached: Counter[str] = Counter()
        """Records that were found and are not used, by ``Unattached``; only grows."""
        self.is_complete = False
        """Whether all that was on disk at the start is attached."""
        self._gone: set[bytes] = set()
        """Keys of what went before that: it may still be among what was found."""
        self.changes = 0
        """Records that came or went; only grows."""

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: bytes) -> Stored | None:
        return self._records.get(key)

    # -- coming -------------------------------------------------------------------------------

    def attach(self, record: SegmentRecord) -> Unattached | None:
        """Take up a record that was found on disk; why not, when it cannot be used (counted).

        Nodes are made for ids that were not seen yet. Where nodes have a record already they keep it.
        """
        if record.key in self._records or record.key in self._gone:
            return None
        place = self._attach_state if record.kind is RecordKind.STATE else self._attach_rows
        failed = place(record)
        if failed is not None:
            self.unattached[failed] += 1
        return failed

    def complete(self) -> None:
        """All that was on disk at the start is attached."""
        self.is_complete = True
        self._gone.clear()

    def refuse(self, record: SegmentRecord) -> None:
        """A record that was found on disk is not wanted."""
        if record.key not in self._records and record.key not in self._gone:
            self.unwanted.append(record.key)

    def _attach_rows(self, record: SegmentRecord) -> Unattached | None:
        before = self._before(record, record.start)
        if isinstance(before, Unattached):
            return before
        if record.tokens.size != record.end - record.start or not record.tokens.size:
            return Unattached.CONFLICT
        if before.owner is not None and before.owner != record.owner:
            return Unattached.CONFLICT  # what one tenant has alone goes on with its own only
        nodes = self._tree.lay(before, record.tokens, record.owner)
        for node in nodes:
            node.call_class = max(node.call_class, _class_of(record))
        self.add(record, nodes, is_written=True)
        return None

    def _attach_state(self, record: SegmentRecord) -> Unattached | None:
        node = self._before(record, record.end)
        if isinstance(node, Unattached):
            return node
        if node is self._tree.root or not self._tree.stateful or record.owner != node.owner:
            return Unattached.CONFLICT
        self.add_state(record, node, is_written=True)
        return None

    def _before(self, record: SegmentRecord, position: int) -> Segment | Unattached:
        """The node that ends at ``position`` of the history that the record belongs to; split off where needed."""
        if record.parent is None:
            return self._tree.root if position == 0 else Unattached.CONFLICT
        parent = self._records.get(record.parent)
        if parent is None:
            return Unattached.ORPHAN
        node = next((node for node in parent.nodes() if node.start < position <= node.end), None)
        if node is None or parent.record.kind is not RecordKind.ROWS:
            return Unattached.CONFLICT
        if position == node.end:
            return node
        return self._tree.split(node, position - node.start) if self._tree.splitting else Unattached.CONFLICT

    def add(self, record: SegmentRecord, nodes: Sequence[Segment], *, is_written: bool) -> None:
        """Let those of ``nodes``, which spell its span, that have no record yet be read from this one."""
        stored = Stored(replace(record, tokens=_NO_TOKENS), nodes[-1], is_written=is_written)
        self._records[record.key] = stored
        self.changes += 1
        for node in nodes:
            if node.stored is None:
                self._tree.note_stored(node, stored)

    def add_state(self, record: SegmentRecord, node: Segment, *, is_written: bool) -> None:
        """Let the state of ``node`` be read from this record, unless it has one already."""
        if node.stored_state is None:
            stored = Stored(record, node, is_written=is_written)
            self._records[record.key] = stored
            self.changes += 1
            self._tree.note_stored_state(node, stored)

    # -- going --------------------------------------------------------------------------------

    def lose(self, keys: Iterable[bytes], reason: Absence) -> None:
        """These records are not on disk any more. Others stay, also behind them: their rows may come back."""
        for key in keys:
            if not self.is_complete:
                self._gone.add(key)
            stored = self._records.pop(key, None)
            if stored is not None:
                self.changes += 1
                self._detach(stored, reason)

    def lose_all(self) -> None:
        """Nothing is known any more of what lies on disk."""
        self.lose(list(self._records), Absence.EVICTED)

    def lose_owned(self, owner: str) -> list[bytes]:
        """Lose the records of ``owner`` that no node of its is read from; names the others."""
        nodes = [node for node in self._tree if node.owner == owner]
        needed = {stored for node in nodes for stored in (node.stored, node.stored_state) if stored is not None}
        owned = [stored for stored in self._records.values() if stored.record.owner == owner]
        self.lose([stored.record.key for stored in owned if stored not in needed], Absence.EVICTED)
        return [stored.record.key for stored in needed]

    def _detach(self, stored: Stored, reason: Absence) -> None:
        tail = stored.tail
        if tail.stored_state is stored:
            self._tree.note_stored_state(tail, None)
            return
        for node in stored.nodes():
            if node.stored is stored:
                self._tree.note_stored(node, None)
                node.absence = reason if node.rows is None else node.absence
                self.discard_state(node)  # its parent's key is gone: it would be an orphan

    def discard_rows(self, node: Segment, *, may_go: Callable[[Segment], bool]) -> None:
        """The record of the rows of ``node``, if it has one, is not wanted any more.

        It stays where it is needed for others, which must be read from it too: those that may not go.
        """
        stored = node.stored
        if stored is not None and all(may_go(other) for other in stored.nodes() if other.stored is stored):
            self._discard(stored)

    def discard_state(self, node: Segment) -> None:
        """The record of the state of ``node`` is not wanted any more, if it has one."""
        if node.stored_state is not None:
            self._discard(node.stored_state)

    def _discard(self, stored: Stored) -> None:
        key = stored.record.key
        self.unwanted.append(key)
        self.lose([key], Absence.EVICTED)


def _class_of(record: SegmentRecord) -> CallClass:
    """The class of the calls that held it; what an unknown number says is no promise."""
    return CallClass(record.call_class) if record.call_class in list(CallClass) else CallClass.COLD
