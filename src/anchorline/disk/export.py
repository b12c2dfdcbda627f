"""Records as one file that can be carried elsewhere: what the namespace is, then record files one after another.

0    magic (8), version (2), zero (2), length of the namespace's text (4), number of records (8)
24   namespace.json, then each record as in a file of its own: header, payload
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anchorline.disk.faults import DiskFault, FaultKind, faults_of
from anchorline.disk.files import Files
from anchorline.disk.format import FIXED_BYTES, Header, checksum, decode_header, encode_header, header_size
from anchorline.disk.namespace import MAX_FILE_BYTES, Namespace, read_namespace
from anchorline.disk.record import RecordKind, SegmentRecord
from anchorline.disk.record_files import RecordFiles
from anchorline.disk.whole_file import write_whole

MAGIC = b"ANCHOREX"
VERSION = 1
_HEAD = struct.Struct("<8sHHIQ")


def chain_of(records: Sequence[SegmentRecord], keys: Sequence[bytes]) -> list[SegmentRecord]:
    """Those of ``records`` that are needed to resume where the records of ``keys`` end, parents first.

    That is each with all before it, and the states along the way. ``records`` have parents before children.
    """
    by_key = {record.key: record for record in records}
    reach: dict[bytes, int] = {}
    """How far into each record the way leads."""
    for key in keys:
        at: SegmentRecord | None = by_key[key]
        end = by_key[key].end
        while at is not None:
            reach[at.key] = max(end, reach.get(at.key, 0))
            end, at = at.start, None if at.parent is None else by_key[at.parent]
    return [record for record in records if record.key in reach or _is_along(record, reach)]


def _is_along(record: SegmentRecord, reach: Mapping[bytes, int]) -> bool:
    if record.kind is not RecordKind.STATE:
        return False
    assert record.parent is not None
    return record.end <= reach.get(record.parent, 0)


def write_export(
    target: Path, namespace: Namespace, source: RecordFiles, records: Sequence[SegmentRecord], files: Files
) -> int:
    """Write ``records``, each checked, to a new file; returns its size. Raises DiskFault, and leaves no file then."""
    with faults_of(target):
        return write_whole(files, target, _pieces(namespace, source, records))


def _pieces(
    namespace: Namespace, source: RecordFiles, records: Sequence[SegmentRecord]
) -> Iterator[bytes | memoryview]:
    text = namespace.encode()
    yield _HEAD.pack(MAGIC, VERSION, 0, len(text), len(records)) + text
    for record in records:
        payload = memoryview(bytearray(record.payload_bytes))
        source.read(record, payload)
        yield encode_header(record, namespace=namespace.digest, payload_checksum=checksum(payload))
        yield payload


@dataclass(frozen=True, slots=True)
class Export:
    """An export that is open for reading."""

    namespace: Namespace
    records: int
    contents: Iterator[tuple[SegmentRecord, memoryview]]
    """Records with their payloads, parents first; raises DiskFault at the first that is not whole."""


@contextmanager
def open_export(path: Path, files: Files) -> Iterator[Export]:
    """Open what ``write_export`` wrote; raises DiskFault when it is something else, longer or shorter."""
    with faults_of(path):
        file = files.open(path)
        try:
            status = files.status_of(file)
            if not status.is_file:
                raise DiskFault(FaultKind.FOREIGN, "not a regular file")
            reader = _Reader(files, file, status.size_bytes)
            magic, version, _zero, text_bytes, count = _HEAD.unpack(reader.take(_HEAD.size))
            if magic != MAGIC:
                raise DiskFault(FaultKind.MAGIC, "not an export of the disk tier")
            if version != VERSION:
                raise DiskFault(FaultKind.VERSION, f"{version}; this program reads {VERSION}")
            namespace = _namespace(reader.take(min(text_bytes, MAX_FILE_BYTES)))
            _check_length(reader.again(), namespace, count)
            yield Export(namespace, count, (_record(reader, namespace) for _ in range(count)))
        finally:
            files.close(file)


def _namespace(text: memoryview) -> Namespace:
    try:
        return read_namespace(bytes(text))
    except ValueError as error:
        raise DiskFault(FaultKind.FIELDS, "its namespace cannot be read") from error


def _check_length(reader: _Reader, namespace: Namespace, count: int) -> None:
    """Raise DiskFault unless the file ends where ``count`` records from here on do; reads their headers alone."""
    for _ in range(count):
        reader.skip(_header(reader, namespace).record.payload_bytes)
    if reader.left_bytes:
        raise DiskFault(
            FaultKind.SIZES, f"{reader.left_bytes} bytes follow the last record, which ends at byte {reader.offset}"
        )


def _record(reader: _Reader, namespace: Namespace) -> tuple[SegmentRecord, memoryview]:
    header = _header(reader, namespace)
    payload = reader.take(header.record.payload_bytes)
    if checksum(payload) != header.payload_checksum:
        raise DiskFault(FaultKind.PAYLOAD_CHECKSUM, f"of {header.record.key.hex()}")
    return header.record, payload


def _header(reader: _Reader, namespace: Namespace) -> Header:
    beginning = reader.take(FIXED_BYTES)
    rest = reader.take(header_size(beginning) - FIXED_BYTES)
    header = decode_header(bytes(beginning) + bytes(rest))
    if header.namespace != namespace.digest:
        raise DiskFault(FaultKind.NAMESPACE)
    return header


class _Reader:
    """Reads a file from ``offset`` to its end."""

    def __init__(self, files: Files, file: int, size_bytes: int, offset: int = 0) -> None:
        self._files = files
        self._file = file
        self._size_bytes = size_bytes
        self.offset = offset

    @property
    def left_bytes(self) -> int:
        return self._size_bytes - self.offset

    def again(self) -> _Reader:
        """Another one, which reads on from here."""
        return _Reader(self._files, self._file, self._size_bytes, self.offset)

    def skip(self, size_bytes: int) -> None:
        """Go past the next bytes; raises DiskFault where there are fewer."""
        if size_bytes > self.left_bytes:
            raise DiskFault(FaultKind.SHORT, "the file is cut off")
        self.offset += size_bytes

    def take(self, size_bytes: int) -> memoryview:
        """The next bytes; raises DiskFault before it makes room for what is not there."""
        start = self.offset
        self.skip(size_bytes)
        target = memoryview(bytearray(size_bytes))
        filled = 0
        while filled < size_bytes:
            count = self._files.read(self._file, target[filled:], start + filled)
            if count <= 0:
                raise DiskFault(FaultKind.SHORT, "the file is cut off")
            filled += count
        return target
