"""What was written is there after a restart, bit for bit, and nothing else is."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

from anchorline.disk.format import header_bytes
from anchorline.disk.record_files import BEGINNING_BYTES
from tests.support.disk import Disk, UnsyncedFiles, conversation, filled, payload_of, rows_record


def test_records_come_back_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    records = conversation()
    filled(tmp_path, records)
    with Disk(tmp_path) as disk:
        found = {record.key: record for record in disk.index()}
        assert found.keys() == {record.key for record in records}
        for record in records:
            same = found[record.key]
            assert np.array_equal(same.tokens, record.tokens)
            names = ("kind", "parent", "start", "end", "owner", "payload_bytes", "call_class", "ends_reply")
            assert [getattr(same, name) for name in names] == [getattr(record, name) for name in names]
            assert disk.read(same) == payload_of(record)
        assert disk.faults == {}


def test_parents_are_found_before_their_children(tmp_path: Path) -> None:
    filled(tmp_path, conversation())
    with Disk(tmp_path) as disk:
        seen: set[bytes | None] = {None}
        for record in disk.index():
            assert record.parent in seen
            seen.add(record.key)


def test_files_and_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    filled(tmp_path / "tier", conversation())
    for path in [tmp_path / "tier", *(tmp_path / "tier").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_that_others_may_enter_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o755)
    filled(tmp_path, conversation())
    assert [record.message for record in caplog.records if "chmod 700" in record.message] == [caplog.messages[0]]
    caplog.clear()
    tmp_path.chmod(0o700)
    filled(tmp_path, conversation())
    assert caplog.messages == []


def test_a_model_without_rows_has_records_without_bytes(tmp_path: Path) -> None:
    empty = rows_record([1, 2, 3], payload_bytes=0)
    filled(tmp_path, [empty])
    with Disk(tmp_path) as disk:
        assert [record.key for record in disk.index()] == [empty.key]
        assert disk.read(empty) == b""


class ReadCountingFiles(UnsyncedFiles):
    """Counts what is read of records."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def read(self, file: int, target: memoryview, offset: int) -> int:
        self.reads.append(super().read(file, target, offset))
        return self.reads[-1]


def test_the_index_reads_headers_and_no_payloads(tmp_path: Path) -> None:
    short = [rows_record([number], payload_bytes=1 << 20) for number in range(20)]
    long = rows_record(range(5000), payload_bytes=1 << 20)
    filled(tmp_path, [*short, long])
    files = ReadCountingFiles()
    with Disk(tmp_path, files=files) as disk:
        assert len(disk.index()) == 21
        disk.settle()
    description, *headers = files.reads
    assert description < 4096
    # One read a record, and a second for the header that is longer than what is read at once.
    assert sorted(headers) == sorted([BEGINNING_BYTES] * 21 + [header_bytes(long) - BEGINNING_BYTES])
