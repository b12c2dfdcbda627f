"""What a tenant clears is gone, also what the index left out; what others have stays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from anchorline.disk.record import SegmentRecord
from tests.support.disk import WAIT_SECONDS, Disk, file_of, filled, rows_record
from tests.support.faulty_files import FaultyFiles, Trouble

HEAD = rows_record(range(10))
MINE = rows_record([20, 21], after=HEAD, owner="me")
MINE_LATER = rows_record([22, 23], after=MINE, owner="me")
THEIRS = rows_record([30, 31], after=HEAD, owner="them")
RECORDS = [HEAD, MINE, MINE_LATER, THEIRS]


def clear(disk: Disk, *, keep: Sequence[SegmentRecord] = ()) -> int:
    """Delete what is mine but for ``keep``; how many files could not be deleted."""
    left: Future[int] = Future()
    disk.store.discard_owned("me", [record.key for record in keep], left.set_result)
    return left.result(WAIT_SECONDS)


def there(path: Path) -> list[SegmentRecord]:
    return [record for record in RECORDS if file_of(path, record).exists()]


def test_what_lacks_its_parent_does_not_come_back_with_it(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    file_of(tmp_path, HEAD).unlink()
    with Disk(tmp_path) as disk:
        assert disk.index() == []
        assert clear(disk) == 0
        assert there(tmp_path) == [THEIRS]
        assert disk.write(HEAD)
    with Disk(tmp_path) as disk:
        assert {record.key for record in disk.index()} == {HEAD.key, THEIRS.key}


def test_damaged_files_that_do_not_tell_whose_they_are_go_too(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    file_of(tmp_path, MINE).write_bytes(b"damaged")
    with Disk(tmp_path) as disk:
        disk.index()
        assert clear(disk) == 0
        assert there(tmp_path) == [HEAD, THEIRS]


def test_what_was_written_meanwhile_goes_too(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        disk.index()
        assert all(disk.write(record) for record in RECORDS)
        assert clear(disk) == 0
        assert there(tmp_path) == [HEAD, THEIRS]


def test_what_is_needed_stays_with_what_lies_before(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    with Disk(tmp_path) as disk:
        disk.index()
        assert clear(disk, keep=[MINE_LATER]) == 0
        assert there(tmp_path) == RECORDS


def test_clearing_waits_for_the_index(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    left: Future[int] = Future()
    with Disk(tmp_path) as disk:
        indexed = threading.Event()
        disk.store.index(lambda records: None, lambda orphans: indexed.set())
        disk.store.discard_owned("me", [], left.set_result)
        assert left.result(WAIT_SECONDS) == 0
        assert indexed.is_set()
    assert there(tmp_path) == [HEAD, THEIRS]


def test_files_that_cannot_be_deleted_are_counted(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    files = FaultyFiles(Trouble.PERMISSION)
    with Disk(tmp_path, files=files) as disk:
        disk.index()
        files.strike_next("remove")
        assert clear(disk) == 1
        assert disk.faults == {"permission": 1}
    # Once the store is closed nothing is deleted, and said to be.
    assert clear(disk) == len(there(tmp_path)) - 2 == 1


def test_records_left_out_are_counted(tmp_path: Path) -> None:
    filled(tmp_path, RECORDS)
    file_of(tmp_path, HEAD).unlink()
    left_out: Future[int] = Future()
    with Disk(tmp_path) as disk:
        disk.store.index(lambda records: None, left_out.set_result)
        assert left_out.result(WAIT_SECONDS) == 3
