"""The bytes of a record's file: a header that describes the payload, then the payload as it is. Pure.

    0    magic, version, codec, kind, flags, class, lengths, span
    48   namespace, key, parent (32 each), payload checksum (16)
    160  owner, ids of the span, header checksum (16), payload

All numbers are little-endian; ``docs/disk.md`` has every byte. Checksums are xxh3-128: they find damage at the
speed of memory, and protect against nobody who writes files on purpose.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import numpy as np
import xxhash

from anchorline.disk.faults import DiskFault, FaultKind
from anchorline.disk.record import KEY_BYTES, RecordKind, SegmentRecord, record_key

MAGIC = b"ANCHORSG"
VERSION = 1
CODEC_RAW = 0
CHECKSUM_BYTES = 16
MAX_OWNER_BYTES = 4096
MAX_HEADER_BYTES = 64 << 20
"""Room for 16 million ids; what a file claims beyond that is not made room for."""
MAX_POSITION = 1 << 31
"""llama.cpp counts positions in 32 bits."""

_FIXED = struct.Struct("<8sHBBBBHIIQQQ32s32s32s16s")
FIXED_BYTES = _FIXED.size
_HAS_PARENT, _HAS_OWNER, _ENDS_REPLY = 1, 2, 4
_FLAGS = _HAS_PARENT | _HAS_OWNER | _ENDS_REPLY
_NO_PARENT = bytes(KEY_BYTES)
_NAME = re.compile(r"([0-9a-f]{64})\.segment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    record: SegmentRecord
    namespace: bytes
    payload_checksum: bytes
    header_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + self.record.payload_bytes


def checksum(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3-128, 16 bytes, most significant first."""
    return xxhash.xxh3_128_digest(data)


def file_name(key: bytes) -> str:
    """Where a record lies in the directory of its namespace: ``ab/ab01….segment``."""
    name = key.hex()
    return f"{name[:2]}/{name}.segment"


def key_of_file(path: str) -> bytes | None:
    """The key that the last part of a file's path tells; None when it is not that of a record."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else bytes.fromhex(found[1])


def header_bytes(record: SegmentRecord) -> int:
    """Size of the header of ``record``."""
    return FIXED_BYTES + len(_owner(record)) + record.tokens.nbytes + CHECKSUM_BYTES


def encode_header(record: SegmentRecord, *, namespace: bytes, payload_checksum: bytes) -> bytes:
    """The header of a file whose payload has that checksum."""
    owner = _owner(record)
    assert len(owner) <= MAX_OWNER_BYTES
    flags = _HAS_PARENT * (record.parent is not None) | _HAS_OWNER * (record.owner is not None)
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        CODEC_RAW,
        record.kind,
        flags | _ENDS_REPLY * record.ends_reply,
        record.call_class,
        0,
        header_bytes(record),
        len(owner),
        record.start,
        record.end,
        record.payload_bytes,
        namespace,
        record.key,
        record.parent or _NO_PARENT,
        payload_checksum,
    )
    body = fixed + owner + record.tokens.astype("<i4", copy=False).tobytes()
    return body + checksum(body)


def header_size(beginning: bytes | memoryview) -> int:
    """Size of the header that starts with these bytes, of which FIXED_BYTES are looked at.

    Raises DiskFault: short, magic, version, sizes.
    """
    if len(beginning) < FIXED_BYTES:
        raise DiskFault(FaultKind.SHORT, f"{len(beginning)} bytes are no header")
    magic, version, _codec, kind, _flags, _class, _zero, size, owner_bytes, start, end, *_ = _FIXED.unpack_from(
        beginning
    )
    if magic != MAGIC:
        raise DiskFault(FaultKind.MAGIC)
    if version != VERSION:
        raise DiskFault(FaultKind.VERSION, f"{version}; this program writes {VERSION}")
    tokens = end - start if kind == RecordKind.ROWS else 0
    if not (start <= end <= MAX_POSITION and owner_bytes <= MAX_OWNER_BYTES):
        raise DiskFault(FaultKind.SIZES, "the span or the owner is too long")
    if size != FIXED_BYTES + owner_bytes + 4 * tokens + CHECKSUM_BYTES:
        raise DiskFault(FaultKind.SIZES, f"a header of {size} bytes does not hold what it says")
    if size > MAX_HEADER_BYTES:
        raise DiskFault(FaultKind.SIZES, f"a header of {size} bytes; {MAX_HEADER_BYTES} are allowed")
    return int(size)


def decode_header(data: bytes | memoryview) -> Header:
    """The header at the start of ``data``; raises DiskFault when any part of it is not as it has to be."""
    size = header_size(data)
    if len(data) < size:
        raise DiskFault(FaultKind.SHORT, "the header is cut off")
    body = bytes(data[: size - CHECKSUM_BYTES])
    if checksum(body) != bytes(data[size - CHECKSUM_BYTES : size]):
        raise DiskFault(FaultKind.HEADER_CHECKSUM)
    _, _, codec, kind, flags, call_class, zero, _, owner_bytes, start, end, payload_bytes, *digests = (
        _FIXED.unpack_from(body)
    )
    namespace, key, parent, payload_checksum = digests
    if codec != CODEC_RAW:
        raise DiskFault(FaultKind.CODEC, f"{codec}; this program reads {CODEC_RAW}")
    if kind not in tuple(RecordKind) or flags & ~_FLAGS or zero or (parent != _NO_PARENT and not flags & _HAS_PARENT):
        raise DiskFault(FaultKind.FIELDS, "an unknown kind or flag")
    ids = np.frombuffer(body, "<i4", offset=FIXED_BYTES + owner_bytes).astype(np.int32)
    ids.flags.writeable = False
    record = SegmentRecord(
        kind=RecordKind(kind),
        key=key,
        parent=parent if flags & _HAS_PARENT else None,
        start=start,
        end=end,
        owner=_read_owner(body[FIXED_BYTES : FIXED_BYTES + owner_bytes], given=bool(flags & _HAS_OWNER)),
        tokens=ids,
        payload_bytes=payload_bytes,
        call_class=call_class,
        ends_reply=bool(flags & _ENDS_REPLY),
    )
    _check_record(record)
    return Header(record=record, namespace=namespace, payload_checksum=payload_checksum, header_bytes=size)


def _check_record(record: SegmentRecord) -> None:
    if record.kind is RecordKind.ROWS:
        placed = record.start < record.end and (record.parent is None) == (record.start == 0)
    else:
        placed = 0 < record.start == record.end and record.parent is not None
    if not placed or (record.tokens < 0).any():
        raise DiskFault(FaultKind.FIELDS, "a span or an id that no record has")
    if record.key != key_of(record):
        raise DiskFault(FaultKind.KEY, "it is not that of the record")


def key_of(record: SegmentRecord) -> bytes:
    """The key that ``record`` has to have."""
    return record_key(
        record.kind,
        parent=record.parent,
        start=record.start,
        end=record.end,
        owner=record.owner,
        tokens=record.tokens,
    )


def _owner(record: SegmentRecord) -> bytes:
    return b"" if record.owner is None else record.owner.encode("utf-8", "surrogatepass")


def _read_owner(data: bytes, *, given: bool) -> str | None:
    if not given:
        if data:
            raise DiskFault(FaultKind.FIELDS, "an owner where there is none")
        return None
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise DiskFault(FaultKind.FIELDS, "the owner is no UTF-8") from error
