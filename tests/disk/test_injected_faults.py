"""Whichever file operation goes wrong, in whichever way: no wrong byte is ever read, and the next start works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from anchorline.disk.record import SegmentRecord
from anchorline.errors import ConfigError
from tests.support.disk import Disk, conversation, payload_of
from tests.support.faulty_files import FaultyFiles, Trouble

RECORDS = conversation()
SILENT = (Trouble.SHORT, Trouble.BIT_FLIP, Trouble.GONE)
"""Perhaps nothing is lost: what is short goes on, not every byte that is read is of use, what is gone is made anew."""
HARMLESS = ("open", "status_of", "read", "close", "expect_reading")
"""Of namespace.json, which is then written anew; the end of the lock; and advice."""


def read_rightly(disk: Disk, records: Sequence[SegmentRecord]) -> int:
    """Records that can be read; what is read is right."""
    read = [(record, disk.read(record)) for record in records]
    assert all(data in (None, payload_of(record)) for record, data in read)
    return sum(data is not None for _record, data in read)


def live(path: Path, files: FaultyFiles) -> Counter[str]:
    """What a server does in two lives; each ends early when it is refused the directory. What went wrong, by kind."""
    first, *rest = RECORDS
    noticed: Counter[str] = Counter()
    try:
        with Disk(path, files=files) as disk:
            disk.index()
            written = [record for record in [first, *rest] if disk.write(record)]
            read_rightly(disk, written)
            disk.store.discard([rest[-1].key])
            disk.settle()
        noticed.update(disk.faults)
        with Disk(path, files=files) as disk:
            read_rightly(disk, disk.index())
        noticed.update(disk.faults)
    except ConfigError:
        noticed["refused"] += 1
    return noticed


@pytest.mark.parametrize("trouble", Trouble)
def test_after_any_fault_a_restart_reads_only_what_is_right_and_writes_the_rest(
    tmp_path: Path, trouble: Trouble
) -> None:
    healthy = FaultyFiles()
    assert live(tmp_path / "healthy", healthy) == {}
    for at in range(1, healthy.operations + 1):
        path, files = tmp_path / str(at), FaultyFiles(trouble, at=at)
        noticed = live(path, files)
        assert files.happened
        assert noticed or trouble in SILENT or files.struck in HARMLESS, (at, files.struck)
        with Disk(path) as disk:
            read_rightly(disk, disk.index())
            assert all(disk.write(record) for record in RECORDS)
            assert read_rightly(disk, RECORDS) == len(RECORDS)


def test_a_life_without_faults_has_none(tmp_path: Path) -> None:
    files = FaultyFiles()
    live(tmp_path, files)
    with Disk(tmp_path) as disk:
        assert {record.key for record in disk.index()} == {record.key for record in RECORDS[:-1]}
        assert disk.faults == {}
