"""A disk tier for tests: records with bytes that are theirs alone, and a store whose answers can be waited for."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anchorline.disk.files import Files
from anchorline.disk.format import file_name
from anchorline.disk.namespace import Namespace
from anchorline.disk.record import RecordKind, SegmentRecord, record_key
from anchorline.disk.store import FileStore

NAMESPACE = Namespace({"model": "small", "K type": "f16", "exact": False})
WAIT_SECONDS = 30.0


def rows_record(
    ids: Sequence[int],
    *,
    after: SegmentRecord | None = None,
    at: int | None = None,
    payload_bytes: int = 1000,
    owner: str | None = None,
) -> SegmentRecord:
    """Rows of ``ids`` behind ``after``, or from its inside where ``at`` says so."""
    tokens = np.array(ids, np.int32)
    start = at if at is not None else 0 if after is None else after.end
    parent = None if after is None else after.key
    end = start + len(tokens)
    key = record_key(RecordKind.ROWS, parent=parent, start=start, end=end, owner=owner, tokens=tokens)
    return SegmentRecord(
        kind=RecordKind.ROWS,
        key=key,
        parent=parent,
        start=start,
        end=end,
        owner=owner,
        tokens=tokens,
        payload_bytes=payload_bytes,
        call_class=2,
    )


def state_record(after: SegmentRecord, *, payload_bytes: int = 500, ends_reply: bool = False) -> SegmentRecord:
    """The state at the end of ``after``."""
    tokens = np.zeros(0, np.int32)
    place: dict[str, Any] = {"parent": after.key, "start": after.end, "end": after.end, "owner": after.owner}
    return SegmentRecord(
        kind=RecordKind.STATE,
        key=record_key(RecordKind.STATE, tokens=tokens, **place),
        tokens=tokens,
        payload_bytes=payload_bytes,
        ends_reply=ends_reply,
        **place,
    )


def conversation(seed: int = 0) -> list[SegmentRecord]:
    """A head, two turns, another turn that forks inside the first, and a state."""
    head = rows_record(range(10, 40), payload_bytes=9000)
    first = rows_record(range(100 + seed, 120 + seed), after=head, payload_bytes=6000)
    second = rows_record(range(200, 205), after=first, owner="someone")
    fork = rows_record(range(300, 303), after=first, at=first.start + 4)
    return [head, first, second, fork, state_record(second, ends_reply=True)]


def payload_of(record: SegmentRecord) -> bytes:
    """The bytes of a record, and of no other."""
    return hashlib.shake_128(record.key).digest(record.payload_bytes)


class UnsyncedFiles(Files):
    """Does not wait for the disk, which no test could tell."""

    def sync(self, file: int) -> None: ...

    def sync_directory(self, path: Path) -> None: ...


class Disk:
    """A store on ``path`` whose calls wait for what they start."""

    def __init__(
        self, path: Path, *, files: Files | None = None, namespace: Namespace = NAMESPACE, **options: Any
    ) -> None:
        options = {"size_bytes": 1 << 30, "queue_bytes": 1 << 20, **options}
        self.store = FileStore(path, namespace, files=files or UnsyncedFiles(), **options)
        self.lost: list[bytes] = []
        self.store.watch_losses(self.lost.extend)

    def index(self) -> list[SegmentRecord]:
        """All records, in the order in which they were handed over."""
        records: list[SegmentRecord] = []
        ready: Future[None] = Future()
        self.store.index(records.extend, lambda orphans: ready.set_result(None))
        ready.result(WAIT_SECONDS)
        return records

    def write(self, record: SegmentRecord) -> bool:
        """Whether the file is there."""
        written = self.queue(record)
        return written is not None and written.result(WAIT_SECONDS)

    def read(self, record: SegmentRecord) -> bytes | None:
        """The payload; None when there was a fault."""
        target = bytearray(record.payload_bytes)
        there: Future[bool] = Future()
        self.store.read(record, memoryview(target), there.set_result)
        return bytes(target) if there.result(WAIT_SECONDS) else None

    def settle(self) -> None:
        """Wait until everything that the store has to do is done."""
        done: Future[None] = Future()
        self.store._writer.do(lambda: done.set_result(None))
        done.result(WAIT_SECONDS)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Inside the block nothing that is queued is carried out."""
        reached, free = threading.Event(), threading.Event()

        def wait() -> None:
            reached.set()
            free.wait(WAIT_SECONDS)

        self.store._writer.do(wait)
        assert reached.wait(WAIT_SECONDS)
        try:
            yield
        finally:
            free.set()

    def queue(self, record: SegmentRecord) -> Future[bool] | None:
        """Ask for a write; None when it was not taken."""
        written: Future[bool] = Future()
        taken = self.store.write(record, memoryview(payload_of(record)), written.set_result)
        return written if taken else None

    @property
    def faults(self) -> dict[str, int]:
        return dict(self.store.counters().faults)

    @property
    def unwritten(self) -> dict[str, int]:
        return dict(self.store.counters().unwritten)

    def close(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        self.store.close(timeout_seconds)

    def begin_close(self, timeout_seconds: float = WAIT_SECONDS) -> threading.Thread:
        """Close on a thread of its own; returns once nothing more is taken."""
        closing = threading.Thread(target=self.close, args=(timeout_seconds,))
        closing.start()
        while not self.store._writer._closing:
            time.sleep(0.001)
        return closing

    def __enter__(self) -> Disk:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def file_of(path: Path, record: SegmentRecord, namespace: Namespace = NAMESPACE) -> Path:
    """Where the file of ``record`` lies."""
    return path / namespace.directory / file_name(record.key)


def filled(path: Path, records: Sequence[SegmentRecord], **options: Any) -> None:
    """Write ``records`` with a store that is closed again."""
    with Disk(path, **options) as disk:
        disk.index()
        assert all(disk.write(record) for record in records)
