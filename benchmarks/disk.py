"""The disk tier by itself: building the index from headers, and writing and reading one large record.

Run: python benchmarks/disk.py [--records N] [--megabytes N] [--directory DIR]
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import click
import numpy as np

from anchorline.disk.files import Files
from anchorline.disk.namespace import Namespace
from anchorline.disk.record import RecordKind, SegmentRecord, record_key
from anchorline.disk.store import FileStore
from anchorline.numbers import IntegerRangeType
from anchorline.refusal import RefusingCommand

NAMESPACE = Namespace({"model": "of a benchmark"})
CHAIN_RECORDS = 20
"""Records of one conversation, each behind the one before."""
RECORD_TOKENS = 300
PAYLOAD_BYTES = 1000
"""Of the records of the index, whose payloads are not read."""
UNLIMITED = 1 << 50


class CountingFiles(Files):
    """Counts what is read, and waits for the disk only where ``syncs``."""

    def __init__(self, *, syncs: bool = True) -> None:
        self.reads = self.read_bytes = 0
        self._syncs = syncs

    def read(self, file: int, target: memoryview, offset: int) -> int:
        count = super().read(file, target, offset)
        self.reads, self.read_bytes = self.reads + 1, self.read_bytes + count
        return count

    def sync(self, file: int) -> None:
        if self._syncs:
            super().sync(file)

    def sync_directory(self, path: Path) -> None:
        if self._syncs:
            super().sync_directory(path)


def record_after(parent: SegmentRecord | None, *, number: int, payload_bytes: int) -> SegmentRecord:
    tokens = np.arange(number, number + RECORD_TOKENS, dtype=np.int32)
    start = 0 if parent is None else parent.end
    key_before = None if parent is None else parent.key
    end = start + RECORD_TOKENS
    return SegmentRecord(
        kind=RecordKind.ROWS,
        key=record_key(RecordKind.ROWS, parent=key_before, start=start, end=end, owner=None, tokens=tokens),
        parent=key_before,
        start=start,
        end=end,
        owner=None,
        tokens=tokens,
        payload_bytes=payload_bytes,
    )


def opened(directory: Path, files: Files) -> FileStore:
    return FileStore(directory, NAMESPACE, size_bytes=UNLIMITED, queue_bytes=UNLIMITED, files=files)


def indexed(store: FileStore) -> list[SegmentRecord]:
    """Wait for the index."""
    records: list[SegmentRecord] = []
    finished: Future[None] = Future()
    store.index(records.extend, lambda orphans: finished.set_result(None))
    finished.result()
    return records


def measured(start: Callable[[Callable[[bool], None]], object]) -> tuple[float, float]:
    """Seconds until what ``start`` starts is done, and those of CPU."""
    done: Future[bool] = Future()
    started, used = time.perf_counter(), time.process_time()
    start(done.set_result)
    assert done.result(), "a fault of the disk"
    return time.perf_counter() - started, time.process_time() - used


def fill(directory: Path, count: int) -> None:
    """Write the records whose headers are to be read."""
    store = opened(directory, CountingFiles(syncs=False))
    indexed(store)
    payload = memoryview(bytes(PAYLOAD_BYTES))
    parent = None
    for number in range(count):
        parent = record_after(
            None if number % CHAIN_RECORDS == 0 else parent, number=number, payload_bytes=PAYLOAD_BYTES
        )
        store.write(parent, payload, lambda there: None)
    store.close(timeout_seconds=3600.0)


def measure_index(directory: Path) -> str:
    files = CountingFiles()
    store = opened(directory, files)
    started, used = time.perf_counter(), time.process_time()
    records = indexed(store)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    store.close(timeout_seconds=60.0)
    return (
        f"index of {len(records)} records: {seconds:.2f} s, {cpu:.2f} s of CPU; "
        f"{files.reads} reads, {files.read_bytes / 1e6:.1f} MB"
    )


def measure_record(directory: Path, megabytes: int) -> Sequence[str]:
    record = record_after(None, number=1 << 20, payload_bytes=megabytes * 1_000_000)
    source = memoryview(np.random.default_rng(0).bytes(record.payload_bytes))
    target = memoryview(bytearray(record.payload_bytes))
    store = opened(directory, Files())
    indexed(store)
    times = {"written and synced": measured(lambda done: store.write(record, source, done))}
    path = next(directory.glob(f"*/*/{record.key.hex()}.segment"))
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    times["read from the disk"] = measured(lambda done: store.read(record, target, done))
    times["read from the page cache"] = measured(lambda done: store.read(record, target, done))
    assert source == target
    store.close(timeout_seconds=60.0)
    return [
        f"{name:<26}{record.payload_bytes / seconds / 1e9:6.2f} GB/s, {cpu:.2f} s of CPU"
        for name, (seconds, cpu) in times.items()
    ]


@click.command(cls=RefusingCommand)
@click.option("--records", type=IntegerRangeType(1), default=10_000, show_default=True, help="Records in the index.")
@click.option("--megabytes", type=IntegerRangeType(1), default=200, show_default=True, help="Size of the large record.")
@click.option("--directory", type=click.Path(path_type=Path, exists=True), default=None, help="On which disk.")
def main(*, records: int, megabytes: int, directory: Path | None) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="anchorline-bench-", dir=directory) as folder:
        fill(Path(folder), records)
        click.echo(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
        click.echo(measure_index(Path(folder)))
        click.echo(f"one record of {megabytes} MB:")
        for line in measure_record(Path(folder), megabytes):
            click.echo(f"  {line}")


if __name__ == "__main__":
    main()
