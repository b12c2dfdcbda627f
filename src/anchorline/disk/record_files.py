"""The record files of one namespace: one at a time, each checked before and after, every error a DiskFault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from anchorline.disk.faults import DiskFault, FaultKind, faults_of
from anchorline.disk.files import Files, FileStatus
from anchorline.disk.format import (
    Header,
    checksum,
    decode_header,
    encode_header,
    file_name,
    header_size,
    key_of_file,
)
from anchorline.disk.record import RecordKind, SegmentRecord
from anchorline.disk.whole_file import BLOCK_BYTES, write_whole

BEGINNING_BYTES = 4096
"""Of a file, read at once to find its header: most fit."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A header with what the file system says of its file."""

    header: Header
    status: FileStatus


class RecordFiles:
    """The files below ``directory``. Holds nothing open and remembers nothing; for several threads."""

    def __init__(self, directory: Path, namespace: bytes, files: Files) -> None:
        self.directory = directory
        self._namespace = namespace
        self._files = files

    def path(self, record: SegmentRecord) -> Path:
        return self.directory / file_name(record.key)

    def write(self, record: SegmentRecord, payload: memoryview, *, stopped: Callable[[], bool] = lambda: False) -> int:
        """Write a file and make it last; returns its size.

        It is under its name whole or not at all. Raises DiskFault, and Stopped once ``stopped()`` says so.
        """
        path = self.path(record)
        header = encode_header(record, namespace=self._namespace, payload_checksum=checksum(payload))
        with faults_of(path):
            self._check_directory(self.directory)
            with suppress(FileExistsError):
                self._files.make_directory(path.parent)
                self._files.sync_directory(self.directory)
            self._check_directory(path.parent)
            return write_whole(self._files, path, (header, payload), stopped=stopped)

    def read_header(self, path: Path) -> FoundFile:
        """The header of a file, checked against its name, its size and the namespace; raises DiskFault."""
        with self._open(path) as (file, status):
            return FoundFile(self._header(file, status, path), status)

    def read(self, record: SegmentRecord, target: memoryview) -> None:
        """Read the payload of ``record`` into ``target`` and check it; what a DiskFault leaves there is of no use."""
        path = self.path(record)
        with self._open(path) as (file, status):
            header = self._header(file, status, path)
            if not same_record(header.record, record):
                raise DiskFault(FaultKind.FIELDS, "another record than the index has")
            with suppress(OSError):  # only advice
                self._files.expect_reading(file, header.header_bytes, target.nbytes)
            self._read_checked(file, header, _blocks(target))

    def verify(self, path: Path) -> FoundFile:
        """Check a file with its payload, which goes nowhere; raises DiskFault."""
        block = memoryview(bytearray(BLOCK_BYTES))
        with self._open(path) as (file, status):
            header = self._header(file, status, path)
            sizes = _block_sizes(header.record.payload_bytes)
            self._read_checked(file, header, (block[:size] for size in sizes))
        return FoundFile(header, status)

    def remove(self, path: Path) -> None:
        """Raises DiskFault; what is not there is removed already."""
        with faults_of(path), suppress(FileNotFoundError):
            self._check_way(path)
            self._files.remove(path)

    def touch(self, path: Path) -> None:
        """Let the file say that it was of use just now; raises DiskFault."""
        with faults_of(path):
            self._check_way(path)
            self._files.touch(path)

    @contextmanager
    def _open(self, path: Path) -> Iterator[tuple[int, FileStatus]]:
        with faults_of(path):
            self._check_way(path)
            file = self._files.open(path)
            try:
                status = self._files.status_of(file)
                if not status.is_file:
                    raise DiskFault(FaultKind.FOREIGN, "not a regular file")
                yield file, status
            finally:
                self._files.close(file)

    def _check_way(self, path: Path) -> None:
        self._check_directory(path.parents[1])
        self._check_directory(path.parent)

    def _check_directory(self, path: Path) -> None:
        """Raises DiskFault when it is a link: anything may lie behind it."""
        if not self._files.status(path).is_directory:
            raise DiskFault(FaultKind.FOREIGN, f"{path} is no directory")

    def _header(self, file: int, status: FileStatus, path: Path) -> Header:
        beginning = memoryview(bytearray(min(BEGINNING_BYTES, status.size_bytes)))
        self._fill(file, beginning, 0)
        size = header_size(beginning)
        if size > status.size_bytes:
            raise DiskFault(FaultKind.SHORT, "the header is cut off")
        if size > beginning.nbytes:
            whole = memoryview(bytearray(size))
            whole[: beginning.nbytes] = beginning
            self._fill(file, whole[beginning.nbytes :], beginning.nbytes)
            beginning = whole
        header = decode_header(beginning)
        self._check_place(header, status, path)
        return header

    def _check_place(self, header: Header, status: FileStatus, path: Path) -> None:
        if header.namespace != self._namespace:
            raise DiskFault(FaultKind.NAMESPACE)
        if key_of_file(path.name) != header.record.key:
            raise DiskFault(FaultKind.KEY, "it is not that of the file's name")
        if path != self.path(header.record):
            raise DiskFault(FaultKind.KEY, "the file lies in another's directory")
        if status.size_bytes < header.file_bytes:
            raise DiskFault(FaultKind.SHORT, "the payload is cut off")
        if status.size_bytes > header.file_bytes:
            raise DiskFault(FaultKind.SIZES, "the file is longer than its payload")

    def _read_checked(self, file: int, header: Header, blocks: Iterable[memoryview]) -> None:
        """Fill ``blocks``, together as long as the payload; each is hashed while the CPU's cache has it."""
        digest, offset = xxhash.xxh3_128(), header.header_bytes
        for block in blocks:
            self._fill(file, block, offset)
            digest.update(block)
            offset += block.nbytes
        if digest.digest() != header.payload_checksum:
            raise DiskFault(FaultKind.PAYLOAD_CHECKSUM)

    def _fill(self, file: int, target: memoryview, offset: int) -> None:
        while target.nbytes:
            count = self._files.read(file, target, offset)
            if count <= 0:
                raise DiskFault(FaultKind.SHORT, f"the file ends at {offset}")
            target, offset = target[count:], offset + count


def _block_sizes(nbytes: int) -> Iterator[int]:
    for start in range(0, nbytes, BLOCK_BYTES):
        yield min(BLOCK_BYTES, nbytes - start)


def _blocks(target: memoryview) -> Iterator[memoryview]:
    for start in range(0, target.nbytes, BLOCK_BYTES):
        yield target[start : start + BLOCK_BYTES]


def same_record(one: SegmentRecord, other: SegmentRecord) -> bool:
    """Whether two records are of the same rows or state; what they say of their use may differ."""
    return (
        one.kind is other.kind
        and one.key == other.key
        and one.parent == other.parent
        and (one.start, one.end, one.owner) == (other.start, other.end, other.owner)
        and one.payload_bytes == other.payload_bytes
        and np.array_equal(one.tokens, other.tokens)
    )


def in_order(records: Sequence[SegmentRecord]) -> tuple[list[SegmentRecord], list[SegmentRecord]]:
    """Records with parents before children, and those that cannot be used since what is before them is not there."""
    usable: dict[bytes, SegmentRecord] = {}
    ordered, orphans = [], []
    # A parent begins before all that follow it.
    for record in sorted(records, key=lambda each: (each.start, each.kind)):
        if record.parent is not None and not _precedes(usable.get(record.parent), record):
            orphans.append(record)
            continue
        ordered.append(record)
        usable[record.key] = record
    return ordered, orphans


def _precedes(parent: SegmentRecord | None, record: SegmentRecord) -> bool:
    return (
        parent is not None
        and parent.kind is RecordKind.ROWS
        and parent.start < record.start <= parent.end
        and parent.owner in (None, record.owner)
    )
