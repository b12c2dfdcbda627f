"""The files of one namespace as the engine's ``SegmentStore``: threads, limits, faults.

    engine thread     write, read, note_use, …    return at once
    writer thread     index, writes, collection, deletion    one after another: nothing races with anything
    reader threads    reads

What all share is the catalog, the counters and the read speed, under one lock that is never held over a file operation.
A fault is counted, and logged the first time; it costs the record that it befell.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from anchorline.disk.catalog import Catalog, Entry
from anchorline.disk.counters import DiskCounters, Unwritten
from anchorline.disk.directory import DiskDirectory
from anchorline.disk.faults import DAMAGED, DiskFault, FaultKind, fault_of, faults_of
from anchorline.disk.files import Files
from anchorline.disk.format import MAX_HEADER_BYTES, header_bytes, key_of_file
from anchorline.disk.jobs import handing_on
from anchorline.disk.namespace import Namespace
from anchorline.disk.reader import Readers
from anchorline.disk.record import SegmentRecord
from anchorline.disk.record_files import RecordFiles
from anchorline.disk.removal import Remover
from anchorline.disk.scan import Found, entry_name, scan
from anchorline.disk.speed import ReadSpeed
from anchorline.disk.whole_file import Stopped
from anchorline.disk.writer import STOP_SECONDS, PendingWrite, Writer
from anchorline.errors import ConfigError

log = logging.getLogger("anchorline.disk")

BATCH_RECORDS = 256
"""Records that are handed over at once when the index is built."""
PAUSE_SECONDS = 60.0
"""How long nothing is written after the file system was found to be full."""
USE_LAG_SECONDS = 60.0
"""How far the time of the last use that a file tells may lag behind."""
SPARE_SHARE = 0.02
"""Of the size limit: what is collected beside what is needed, so that not every write has to look for room."""


class FileStore:
    """Implements ``SegmentStore``. Owns the directory until ``close``."""

    def __init__(
        self,
        directory: Path,
        namespace: Namespace,
        *,
        size_bytes: int,
        queue_bytes: int,
        files: Files | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Lock ``directory``, which is made if need be; what lies in it is seen by ``index``.

        All files of all namespaces together take at most ``size_bytes``; at most ``queue_bytes`` wait to be written.
        ``clock`` gives the time since the epoch, ``timer`` any. Raises ConfigError.
        """
        self._files = Files() if files is None else files
        self._directory = DiskDirectory(directory, self._files)
        self._namespace = namespace
        self._own = RecordFiles(directory / namespace.directory, namespace.digest, self._files)
        self._size_bytes = size_bytes
        self._clock, self._timer = clock, timer
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._remover = Remover(self._directory, self._own, self._catalog, self._lock, self._note_fault)
        self._counters = DiskCounters()
        self._speed = ReadSpeed()
        self._stale: set[str] = set()
        self._paused_until = 0.0
        self._lost: Callable[[Sequence[bytes]], None] = lambda keys: None
        self._directory.open()
        self._writer = Writer(self._write, queue_bytes=queue_bytes, failed=self._note_error)
        self._readers = Readers(self._note_error)

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._catalog.used_bytes

    @property
    def limit_bytes(self) -> int:
        return self._size_bytes

    @property
    def read_seconds_per_byte(self) -> float | None:
        with self._lock:
            return self._speed.seconds_per_byte

    def counters(self) -> DiskCounters:
        """A copy that no longer changes."""
        with self._lock:
            return self._counters.copy()

    def write(self, record: SegmentRecord, payload: memoryview, done: Callable[[bool], None]) -> bool:
        assert payload.nbytes == record.payload_bytes
        size_bytes = header_bytes(record)
        if size_bytes > MAX_HEADER_BYTES or size_bytes + record.payload_bytes > self._size_bytes:
            reason: Unwritten | None = Unwritten.OVERSIZE
        elif self._clock() < self._paused_until:
            reason = Unwritten.PAUSED
        else:
            reason = self._writer.submit(PendingWrite(record, payload, done))
        if reason is not None:
            self._count_unwritten(reason)
        return reason is None

    def read(self, record: SegmentRecord, target: memoryview, done: Callable[[bool], None]) -> None:
        assert target.nbytes == record.payload_bytes
        if self._writer.stopped.is_set():
            done(False)
            return
        self._readers.do(partial(self._answer, record, target, done))

    def index(self, found: Callable[[Sequence[SegmentRecord]], None], finished: Callable[[int], None]) -> None:
        """To be called once, before the first ``write``: until then nothing is known of what is there."""
        self._writer.do(partial(self._index, found, finished))
        self._writer.do(self._index_others)

    def note_use(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            now = self._clock()
            for key in keys:
                self._stale.update(self._catalog.use(self._name(key), now, lag_seconds=USE_LAG_SECONDS))
            stale = bool(self._stale)
        if stale:
            self._writer.do(self._touch)

    def set_pinned(self, key: bytes, pinned: bool) -> None:
        with self._lock:
            self._catalog.pin(self._name(key), pinned)

    def discard(self, keys: Sequence[bytes]) -> None:
        self._writer.cancel(set(keys))
        names = [self._name(key) for key in keys]
        self._writer.do(partial(self._discard, names))

    def discard_owned(self, owner: str, keep: Collection[bytes], done: Callable[[int], None]) -> None:
        names = [self._name(key) for key in keep]
        if not self._writer.do(partial(self._discard_owned, owner, names, done)):
            done(len(self._owned(owner, names)))

    def watch_losses(self, lost: Callable[[Sequence[bytes]], None]) -> None:
        self._lost = lost

    def close(self, timeout_seconds: float) -> None:
        with self._lock:
            pinned = {key for name in self._catalog.pinned if (key := key_of_file(name)) is not None}
        self._writer.close(timeout_seconds, first=pinned)
        self._readers.close(STOP_SECONDS)
        self._directory.close()

    @property
    def is_closed(self) -> bool:
        return not self._writer.is_running and not self._readers.are_running

    # On the reader threads

    def _answer(self, record: SegmentRecord, target: memoryview, done: Callable[[bool], None]) -> None:
        there = False
        with handing_on(self._note_error):
            there = self._read(record, target)
        done(there)

    def _read(self, record: SegmentRecord, target: memoryview) -> bool:
        if self._writer.stopped.is_set():
            return False
        started = self._timer()
        try:
            self._own.read(record, target)
        except DiskFault as fault:
            self._note_fault(fault)
            self._give_up(self._name(record.key), fault.kind)
            return False
        seconds = self._timer() - started
        with self._lock:
            self._counters.read_records += 1
            self._counters.read_bytes += target.nbytes
            self._speed.note(target.nbytes, seconds)
        self.note_use([record.key])
        return True

    def _give_up(self, name: str, kind: FaultKind) -> None:
        """Not use a file again; remove it when it can never be of use."""
        with self._lock:
            self._catalog.mark_unusable(name)
        if kind is FaultKind.MISSING or kind in DAMAGED:
            self._writer.do(partial(self._remove_unusable, name))

    # On the writer thread

    def _index(self, found: Callable[[Sequence[SegmentRecord]], None], finished: Callable[[int], None]) -> None:
        orphans = 0
        with handing_on(self._note_error):
            try:
                self._restore_directory()
            except DiskFault as fault:
                self._note_fault(fault)
            here = self._scan(self._own)
            records, orphans = here.records, here.orphans
            with self._lock:
                self._counters.indexed_records += len(records)
            for start in range(0, len(records), BATCH_RECORDS):
                found(records[start : start + BATCH_RECORDS])
        finished(orphans)

    def _index_others(self) -> None:
        """Take note of what the files of other namespaces take, and keep the limit."""
        try:
            others = [name for name in self._directory.namespaces() if name != self._namespace.directory]
        except OSError as error:
            self._note_fault(fault_of(error, self._directory.path))
            return
        for name in others:
            self._scan(RecordFiles(self._directory.path / name, bytes.fromhex(name), self._files))
        self._make_room(0)

    def _scan(self, records: RecordFiles) -> Found:
        found = scan(records, self._files, cleans=self._remover.is_allowed(), stopped=self._writer.stopped.is_set)
        with self._lock:
            for name, entry in found.entries.items():
                self._catalog.add(name, entry)
        for fault in found.faults:
            self._note_fault(fault)
        return found

    def _write(self, write: PendingWrite) -> bool:
        """Whether the file is there now."""
        record, name = write.record, self._name(write.record.key)
        with self._lock:
            if self._catalog.is_usable(name):
                return True
        parent = None if record.parent is None else self._name(record.parent)
        reason = self._obstacle(header_bytes(record) + record.payload_bytes, parent)
        if reason is None:
            try:
                size_bytes = self._write_file(record, write.payload)
            except Stopped:
                reason = Unwritten.CLOSED
            except DiskFault as fault:
                self._note_write_fault(fault)
                return False
        if reason is not None:
            self._count_unwritten(reason)
            return False
        now = self._clock()
        entry = Entry(
            size_bytes=size_bytes, last_use_seconds=now, file_use_seconds=now, parent=parent, owner=record.owner
        )
        with self._lock:
            self._catalog.add(name, entry)
            self._counters.written_records += 1
            self._counters.written_bytes += size_bytes
        if record.parent is not None:
            self.note_use([record.parent])
        return True

    def _obstacle(self, size_bytes: int, parent: str | None) -> Unwritten | None:
        """Why a file of that size may not be written; None once there is room for it."""
        if self._writer.stopped.is_set():
            return Unwritten.CLOSED
        if self._clock() < self._paused_until:
            return Unwritten.PAUSED
        return None if self._make_room(size_bytes, keep=parent) else Unwritten.NO_ROOM

    def _write_file(self, record: SegmentRecord, payload: memoryview) -> int:
        stopped = self._writer.stopped.is_set
        with faults_of(self._directory.path):
            there = self._directory.has_lock()
        if there:
            try:
                return self._own.write(record, payload, stopped=stopped)
            except DiskFault as fault:
                if fault.kind is not FaultKind.MISSING:
                    raise
        self._start_anew()
        return self._own.write(record, payload, stopped=stopped)

    def _start_anew(self) -> None:
        """After somebody removed the directory: make it again and forget what was in it; raises DiskFault."""
        self._restore_directory()
        with self._lock:
            gone = self._catalog.below(self._namespace.directory)
            for name in gone:
                self._catalog.remove(name)
        self._tell_losses(gone)

    def _restore_directory(self) -> None:
        with faults_of(self._own.directory):
            try:
                self._directory.restore(self._namespace)
            except ConfigError as error:
                raise DiskFault(FaultKind.PERMISSION, str(error)) from error

    def _make_room(self, size_bytes: int, *, keep: str | None = None) -> bool:
        """Collect files until ``size_bytes`` more fit; False, and nothing is collected, where that can't be."""
        with self._lock:
            missing = self._catalog.missing_bytes(size_bytes, limit_bytes=self._size_bytes)
            if not missing:
                return True
            files = self._catalog.copy()  # looking takes a while, and the engine must not wait for the lock
        victims = files.victims(missing, spare_bytes=int(SPARE_SHARE * self._size_bytes), keep=keep)
        if files.size_of(victims) < missing:
            return False
        self._collect(victims)
        with self._lock:
            return not self._catalog.missing_bytes(size_bytes, limit_bytes=self._size_bytes)

    def _collect(self, names: Sequence[str]) -> None:
        before = self.used_bytes
        gone = self._remover.remove(names)
        with self._lock:
            self._counters.collected_files += len(gone)
            self._counters.collected_bytes += before - self._catalog.used_bytes
        self._tell_losses(gone)

    def _discard(self, names: Sequence[str]) -> None:
        self._remover.remove(names)

    def _discard_owned(self, owner: str, keep: Sequence[str], done: Callable[[int], None]) -> None:
        gone: list[str] = []
        names = self._owned(owner, keep)
        with handing_on(self._note_error):
            gone = self._remover.remove(names)
        done(len(names) - len(gone))

    def _remove_unusable(self, name: str) -> None:
        with self._lock:
            if self._catalog.is_usable(name):
                return  # it was written again
        self._remover.remove([name])

    def _touch(self) -> None:
        """Let the files say that they were of use."""
        with self._lock:
            names, self._stale = self._stale, set()
        gone = self._remover.touch(names)
        for name in gone:
            self._give_up(name, FaultKind.MISSING)
        self._tell_losses(gone)

    # On any thread

    def _name(self, key: bytes) -> str:
        return entry_name(self._namespace.directory, key)

    def _owned(self, owner: str, keep: Iterable[str]) -> list[str]:
        with self._lock:
            return self._catalog.owned(owner, self._namespace.directory, keep=keep)

    def _tell_losses(self, names: Iterable[str]) -> None:
        own = f"{self._namespace.directory}/"
        keys = [key for name in names if name.startswith(own) and (key := key_of_file(name)) is not None]
        if keys:
            self._lost(keys)

    def _note_write_fault(self, fault: DiskFault) -> None:
        self._note_fault(fault)
        if fault.kind is FaultKind.NO_SPACE:
            self._paused_until = self._clock() + PAUSE_SECONDS

    def _note_fault(self, fault: DiskFault) -> None:
        with self._lock:
            self._counters.faults[fault.kind] += 1
            first = self._counters.faults[fault.kind] == 1
        log.log(logging.WARNING if first else logging.DEBUG, "disk tier: %s", fault)

    def _note_error(self, error: Exception) -> None:
        """What no fault explains: the server goes on without what it befell."""
        log.error("disk tier: this should not happen", exc_info=error)
        self._note_fault(DiskFault(FaultKind.UNEXPECTED, repr(error)))

    def _count_unwritten(self, reason: Unwritten) -> None:
        with self._lock:
            self._counters.unwritten[reason] += 1
