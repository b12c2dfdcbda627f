"""The bytes of a record's file, as docs/disk.md has them."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorline.disk.faults import DiskFault
from anchorline.disk.format import (
    CHECKSUM_BYTES,
    FIXED_BYTES,
    checksum,
    decode_header,
    encode_header,
    file_name,
    header_bytes,
    key_of_file,
)
from anchorline.disk.record import RecordKind, SegmentRecord, record_key
from anchorline.disk.record_files import same_record
from tests.support.disk import NAMESPACE, conversation, rows_record, state_record

HEAD, TURN, *_ = conversation()
RECORD = rows_record([5, 6, 7], after=HEAD, owner="me")


def encoded(record: SegmentRecord) -> bytes:
    return encode_header(record, namespace=NAMESPACE.digest, payload_checksum=checksum(b"payload"))


@st.composite
def records(draw: st.DrawFn) -> SegmentRecord:
    owner = draw(st.none() | st.text(max_size=20))
    ids = draw(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=50))
    made = rows_record(
        ids, after=draw(st.sampled_from([None, HEAD])), owner=owner, payload_bytes=draw(st.integers(0, 1 << 40))
    )
    if draw(st.booleans()):
        made = state_record(made, ends_reply=draw(st.booleans()))
    return replace(made, call_class=draw(st.integers(0, 255)))


@settings(max_examples=50)
@given(records())
def test_every_record_comes_back_as_it_was(record: SegmentRecord) -> None:
    header = decode_header(encoded(record))
    assert same_record(header.record, record)
    assert (header.record.call_class, header.record.ends_reply) == (record.call_class, record.ends_reply)
    assert (header.namespace, header.payload_checksum) == (NAMESPACE.digest, checksum(b"payload"))
    assert header.header_bytes == header_bytes(record) == len(encoded(record))


def test_every_byte_lies_where_the_documentation_says() -> None:
    data = encoded(RECORD)
    assert data[:16] == b"ANCHORSG" + struct.pack("<HBBBBH", 1, 0, 1, 0b011, 2, 0)
    assert struct.unpack_from("<IIQQQ", data, 16) == (len(data), 2, RECORD.start, RECORD.end, RECORD.payload_bytes)
    assert data[48:80] == NAMESPACE.digest
    assert data[80:112] == RECORD.key
    assert data[112:144] == HEAD.key
    assert data[144:160] == checksum(b"payload")
    assert data[160:162] == b"me"
    assert data[162:174] == struct.pack("<3i", 5, 6, 7)
    assert data[174:] == checksum(data[:174])
    assert (FIXED_BYTES, CHECKSUM_BYTES) == (160, 16)


def test_a_checksum_is_xxh3_of_128_bits() -> None:
    assert checksum(b"").hex() == "99aa06d3014798d86001c324468d497f"


def test_any_flipped_bit_of_a_header_is_noticed() -> None:
    whole = encoded(RECORD)
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DiskFault):
            decode_header(bytes(flipped))


@given(st.binary(max_size=400))
def test_no_bytes_are_a_header_by_chance(data: bytes) -> None:
    with pytest.raises(DiskFault):
        decode_header(b"ANCHORSG" + struct.pack("<H", 1) + data)


def misplaced(**changes: object) -> bytes:
    """A header with other fields than a record has, under the key of those."""
    wrong = replace(RECORD, **changes)  # type: ignore[arg-type]
    key = record_key(
        wrong.kind, parent=wrong.parent, start=wrong.start, end=wrong.end, owner=wrong.owner, tokens=wrong.tokens
    )
    return encoded(replace(wrong, key=key))


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": None},
        {"start": 0, "end": 3},
        {"end": RECORD.start, "tokens": np.zeros(0, np.int32)},
        {"tokens": np.array([5, -6, 7], np.int32)},
        {"kind": RecordKind.STATE, "end": RECORD.start, "tokens": np.zeros(0, np.int32), "parent": None},
    ],
    ids=["no parent", "a parent of the root", "no tokens", "a negative id", "a state of nothing"],
)
def test_a_header_that_no_record_has_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(DiskFault, match="fields"):
        decode_header(misplaced(**changes))


def test_names_of_files_tell_the_key() -> None:
    assert file_name(RECORD.key) == f"{RECORD.key.hex()[:2]}/{RECORD.key.hex()}.segment"
    assert key_of_file(file_name(RECORD.key)) == RECORD.key
    for name in ("notes.txt", f"{RECORD.key.hex()}.segment.tmp", f"{RECORD.key.hex()[1:]}.segment"):
        assert key_of_file(name) is None
