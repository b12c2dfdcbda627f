"""The one thread that changes files: writes in the order in which they were asked for, and what else there is to do."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from anchorline.disk.counters import Unwritten
from anchorline.disk.jobs import Failed, handing_on
from anchorline.disk.record import SegmentRecord

STOP_SECONDS = 2.0
"""How long a write that is given up may take to notice."""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """``payload`` stays valid until ``done`` was called."""

    record: SegmentRecord
    payload: memoryview
    done: Callable[[bool], None]


class Writer:
    """Takes writes up to a number of bytes, and chores without limit, which go before writes.

    ``write`` is called on the thread for each write and says whether the file is there. What a write or a chore raises
    goes to ``failed``, and the thread goes on.
    """

    def __init__(self, write: Callable[[PendingWrite], bool], *, queue_bytes: int, failed: Failed) -> None:
        self._write = write
        self._failed = failed
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._writes: deque[PendingWrite] = deque()
        self._chores: deque[Callable[[], None]] = deque()
        self._waiting_bytes = 0
        """Of writes that are not done."""
        self._closing = False
        self.stopped = threading.Event()
        """Set when no time is left: what is under way is to be given up."""
        self._thread = threading.Thread(target=self._run, name="disk-writer", daemon=True)
        self._thread.start()

    def submit(self, write: PendingWrite) -> Unwritten | None:
        """Queue a write, or say why not. One write alone may be larger than the queue."""
        size = write.payload.nbytes
        with self._changed:
            if self._closing:
                return Unwritten.CLOSED
            if self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
                return Unwritten.QUEUE_FULL
            self._writes.append(write)
            self._waiting_bytes += size
            self._changed.notify()
        return None

    def do(self, chore: Callable[[], None]) -> bool:
        """Do this on the thread, soon; False once closed, when it is not done."""
        with self._changed:
            if not self._closing:
                self._chores.append(chore)
                self._changed.notify()
            return not self._closing

    def cancel(self, keys: Collection[bytes]) -> None:
        """Leave out writes of these that have not begun; they are ``done``, and not there."""
        with self._changed:
            cancelled = [write for write in self._writes if write.record.key in keys]
            self._writes = deque(write for write in self._writes if write.record.key not in keys)
            self._waiting_bytes -= sum(write.payload.nbytes for write in cancelled)
        for write in cancelled:
            write.done(False)

    def close(self, timeout_seconds: float, *, first: Collection[bytes]) -> None:
        """Write what is queued, records of ``first`` and those before them first, for as long as that; then stop.

        What is left is ``done``, and not there.
        """
        with self._changed:
            self._closing = True
            self._writes = deque(_sorted(self._writes, first))
            self._changed.notify()
        self._thread.join(timeout_seconds)
        self.stopped.set()
        # Now at most one block is still being written.
        self._thread.join(STOP_SECONDS)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            with handing_on(self._failed):
                job()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._chores or self._writes or self._closing)
            if self._chores:
                return self._chores.popleft()
            if not self._writes:
                return None
            write = self._writes.popleft()
        return lambda: self._carry_out(write)

    def _carry_out(self, write: PendingWrite) -> None:
        written = False
        with handing_on(self._failed):
            written = self._write(write)
        with self._changed:
            self._waiting_bytes -= write.payload.nbytes
        write.done(written)


def _sorted(writes: Collection[PendingWrite], first: Collection[bytes]) -> list[PendingWrite]:
    """Writes of ``first`` and of what lies before them, then the others, each in the order they had."""
    parents = {write.record.key: write.record.parent for write in writes}
    wanted: set[bytes] = set()
    for key in first:
        at: bytes | None = key
        while at is not None and at in parents and at not in wanted:
            wanted.add(at)
            at = parents[at]
    return sorted(writes, key=lambda write: write.record.key not in wanted)
