"""A process that is killed while it writes loses what it was writing, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.disk import Disk, payload_of, rows_record

WRITER = """
import sys
from pathlib import Path
from tests.support.disk import Disk, rows_record

disk = Disk(Path(sys.argv[1]))
disk.index()
record = None
for number in range(10**9):
    record = rows_record([number], after=record if number % 10 else None, payload_bytes=200_000)
    assert disk.write(record)
    print(number, flush=True)
"""


@pytest.mark.parametrize("writes", [1, 7, 40])
def test_what_was_written_before_the_kill_is_there_and_right(tmp_path: Path, writes: int) -> None:
    root = Path(__file__).parents[2]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], cwd=root, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(writes)]
    writer.kill()
    rest = writer.stdout.read().split("\n")
    writer.wait()
    told += [int(line) for line in rest[:-1]]
    with Disk(tmp_path) as disk:
        found = {record.key: record for record in disk.index()}
        record = None
        for number in told:
            record = rows_record([number], after=record if number % 10 else None, payload_bytes=200_000)
            assert disk.read(found.pop(record.key)) == payload_of(record)
        # One more may have been written that there was no time to tell of.
        assert len(found) <= 1
        assert disk.faults == {}
        assert not list(tmp_path.rglob("*.tmp"))
