"""Reading records back into the host tier, while other streams go on.

    path     |=== host ===|=== disk ===|=== disk ===|
    load                  |- reading --|- reading --|  into memory of the arena, by threads of the store
                                                    ^ state of a stateful model

The memory is taken first, from what is worth less. Once all is read the path is in the host tier as if it had just
been saved; what could not be read, and what lies behind it, is not there. A load that takes too long is over without
what is not read yet, whose memory stays taken until the store has let go of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from anchorline.cache.rows import Rows, State
from anchorline.cache.segment import Absence, Segment, Stored
from anchorline.cache.spilling import Post
from anchorline.cache.storage import HostStorage
from anchorline.cache.stored import StoredIndex
from anchorline.cache.tree import SegmentTree
from anchorline.disk.record import RecordKind, SegmentRecord, SegmentStore


@dataclass(slots=True, eq=False)
class _Reading:
    """One record on its way into memory; several loads may wait for it."""

    stored: Stored
    memory: memoryview
    free: Callable[[], None]
    loads: int = 0
    """That wait for it, or will use it."""
    succeeded: bool | None = None
    """None until it is read."""
    is_attached: bool = False

    @property
    def record(self) -> SegmentRecord:
        return self.stored.record


@dataclass(slots=True, eq=False)
class Load:
    """What one stream waits for, and a lease on the segments that it is for."""

    path: Sequence[Segment]
    """From the root on; each is leased."""
    until_seconds: float
    """When it is given up, by the cache's clock."""
    readings: list[_Reading] = field(default_factory=list)
    """Rows, parents before children, then the state."""
    is_over: bool = False
    is_wanted: bool = True

    def end(self) -> None:
        """The stream has used what was loaded, or is not going to. Idempotent."""
        if self.is_wanted and self.is_over:
            self.release()
        self.is_wanted = False

    def release(self) -> None:
        for node in self.path:
            node.leases -= 1


class Loader:
    """Brings paths back into the host tier. Owned by the engine thread."""

    def __init__(
        self, *, tree: SegmentTree, storage: HostStorage, index: StoredIndex, store: SegmentStore, post: Post
    ) -> None:
        self.loads = 0
        """That were begun; only grows."""
        self.refused = 0
        """That were not, as the host tier had no room; only grows."""
        self.given_up = 0
        """That took too long; only grows."""
        self._tree = tree
        self._storage = storage
        self._index = index
        self._store = store
        self._post = post
        self._readings: dict[bytes, _Reading] = {}
        self._waiting: list[Load] = []
        """That are not over."""

    def begin(self, path: Sequence[Segment], end: int, *, worth: float, until_seconds: float) -> Load | None:
        """Start to read what the host tier lacks of ``path`` up to ``end``; None when it has no room.

        With plain attention less than all may have room, and is read. ``worth`` is what room may be made for.
        """
        load = Load([segment for segment in path if segment.start < end], until_seconds)
        for node in load.path:
            node.leases += 1
        for stored in missing_records(load.path, end, stateful=self._tree.stateful):
            reading = self._readings.get(stored.record.key) or self._reserve(stored, worth)
            if reading is None:
                if self._tree.stateful:
                    self._dismiss(load)
                break
            reading.loads += 1
            load.readings.append(reading)
        if not load.readings:
            load.release()
            self.refused += 1
            return None
        self.loads += 1
        self._waiting.append(load)
        for reading in load.readings:
            self._start(reading)
        self._settle_loads()
        return load

    @property
    def is_waiting(self) -> bool:
        """Whether a load is under way."""
        return bool(self._waiting)

    def give_up_late(self, now_seconds: float) -> bool:
        """End the loads whose time is over; whether there were any."""
        late = [load for load in self._waiting if load.until_seconds <= now_seconds]
        for load in late:
            self._settle(load)
        self.given_up += len(late)
        return bool(late)

    def _reserve(self, stored: Stored, worth: float) -> _Reading | None:
        reserved = self._storage.reserve(stored.record.payload_bytes, worth=worth)
        return None if isinstance(reserved, Absence) else _Reading(stored, *reserved)

    def _dismiss(self, load: Load) -> None:
        for reading in load.readings:
            self._leave(reading)
        load.readings.clear()

    def _leave(self, reading: _Reading) -> None:
        """One load less is for ``reading``."""
        reading.loads -= 1
        self._free_unused(reading)

    def _free_unused(self, reading: _Reading) -> None:
        """Free what nobody took or waits for, unless the store may still write to it."""
        is_under_way = reading.succeeded is None and self._readings.get(reading.record.key) is reading
        if not reading.loads and not reading.is_attached and not is_under_way:
            self._readings.pop(reading.record.key, None)
            reading.free()

    def _start(self, reading: _Reading) -> None:
        if reading.record.key in self._readings:
            return
        self._readings[reading.record.key] = reading

        def done(succeeded: bool) -> None:
            self._post(partial(self._read, reading, succeeded=succeeded))

        self._store.read(reading.stored.whole_record(), reading.memory, done)

    # -- the end of a read --------------------------------------------------------------------

    def _read(self, reading: _Reading, *, succeeded: bool) -> None:
        reading.succeeded = succeeded
        if not succeeded:
            self._index.lose([reading.record.key], Absence.RESTORE_FAILED)
        if reading.loads:
            self._settle_loads()
        else:
            self._free_unused(reading)  # it came too late

    def _settle_loads(self) -> None:
        for load in [load for load in self._waiting if all(part.succeeded is not None for part in load.readings)]:
            self._settle(load)

    def _settle(self, load: Load) -> None:
        """Put what is read into the tree, as far as what is before it is there, and wait for nothing more."""
        self._waiting.remove(load)
        for reading in load.readings:
            if not reading.succeeded or reading.is_attached:
                continue
            if reading.record.kind is RecordKind.STATE:
                self._attach_state(reading)
            else:
                self._attach_rows(reading, load.path[-1])
        for reading in load.readings:
            self._leave(reading)
        load.is_over = True
        if not load.is_wanted:
            load.release()

    def _attach_rows(self, reading: _Reading, leaf: Segment) -> None:
        """Let the nodes of its span have the rows, all of which lie on one history and some on the way to ``leaf``."""
        record = reading.record
        rows = Rows(reading.memory, record.start, record.end, reading.free)
        is_current = self._index.find(record.key) is reading.stored
        line = reading.stored.nodes() if is_current else _span(leaf, record.start, record.end)
        for node in reversed(line):
            has_parent = node.parent is self._tree.root or (node.parent is not None and node.parent.rows is not None)
            if node.rows is None and has_parent:
                self._tree.keep(node, rows)
                self._take(reading)

    def _attach_state(self, reading: _Reading) -> None:
        node = reading.stored.tail
        if node.rows is not None and node.state is None:
            state = State(reading.memory, reading.free, ends_reply=reading.record.ends_reply)
            self._tree.keep_state(node, state)
            self._take(reading)

    def _take(self, reading: _Reading) -> None:
        """The tree has the bytes now, and frees them when it wants to."""
        reading.is_attached = True
        self._readings.pop(reading.record.key, None)


def missing_records(path: Sequence[Segment], end: int, *, stateful: bool) -> list[Stored]:
    """The records to read before ``path`` can be restored up to ``end``: rows, parents first, then the state."""
    missing: list[Stored] = []
    for node in path:
        if node.rows is None and node.start < end:
            assert node.stored is not None
            if node.stored not in missing:
                missing.append(node.stored)
    if stateful:
        last = next(node for node in path if node.end == end)
        if last.state is None:
            assert last.stored_state is not None
            missing.append(last.stored_state)
    return missing


def _span(leaf: Segment, start: int, end: int) -> list[Segment]:
    """The nodes between the positions on the way from ``leaf`` up to the root, the last first."""
    nodes: list[Segment] = []
    node: Segment | None = leaf
    while node is not None and node.parent is not None:
        if start <= node.start and node.end <= end:
            nodes.append(node)
        node = node.parent
    return nodes
