"""What the tier may take: bytes on the disk, bytes that wait, time at the end; and who gives way."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import pytest

from anchorline.disk import store, writer
from anchorline.disk.format import header_bytes
from anchorline.disk.namespace import Namespace
from anchorline.disk.record import SegmentRecord
from anchorline.disk.store import PAUSE_SECONDS
from anchorline.errors import ConfigError
from tests.support.disk import NAMESPACE, WAIT_SECONDS, Disk, conversation, file_of, filled, payload_of, rows_record
from tests.support.faulty_files import FaultyFiles, Trouble

OTHER = Namespace({**NAMESPACE.facts, "K type": "q8_0"})


def size_of(*records: SegmentRecord) -> int:
    return sum(header_bytes(record) + record.payload_bytes for record in records)


def heads(count: int) -> list[SegmentRecord]:
    """Records of the same size that have nothing to do with each other."""
    return [rows_record([number], payload_bytes=10_000) for number in range(count)]


class Clock:
    """Seconds since the epoch, which pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def test_what_was_used_longest_ago_gives_way(tmp_path: Path) -> None:
    clock = Clock()
    first, second, third, fourth = records = heads(4)
    with Disk(tmp_path, size_bytes=size_of(*records[:3]), clock=clock) as disk:
        disk.index()
        for record in records[:3]:
            clock.now += 1
            assert disk.write(record)
        clock.now += 1
        disk.store.note_use([first.key])
        assert disk.write(fourth)
        assert disk.lost == [second.key]
        assert disk.store.used_bytes == size_of(first, third, fourth)
        counters = disk.store.counters()
        assert (counters.collected_files, counters.collected_bytes) == (1, size_of(second))
    with Disk(tmp_path) as disk:
        assert {record.key for record in disk.index()} == {first.key, third.key, fourth.key}


def test_children_give_way_before_their_parents_and_a_use_is_one_of_all_before(tmp_path: Path) -> None:
    clock = Clock()
    head, turn, late, _fork, state = conversation()
    (other,) = heads(1)
    room = size_of(head, turn, late, state, other)
    with Disk(tmp_path, size_bytes=room, clock=clock) as disk:
        disk.index()
        for record in (head, turn, late, state, other):
            clock.now += 1
            assert disk.write(record)
        clock.now += 1
        # The oldest files are the head and its turns, but what comes after them was used when it was written.
        assert disk.write(rows_record([77], payload_bytes=700))
        assert disk.lost == [state.key, late.key]


def test_a_child_that_is_written_makes_its_parents_newer(tmp_path: Path) -> None:
    clock = Clock()
    head, turn, *_ = conversation()
    other, newcomer = heads(2)
    with Disk(tmp_path, size_bytes=size_of(head, other, turn), clock=clock) as disk:
        disk.index()
        for record in (head, other, turn):
            clock.now += 1
            assert disk.write(record)
        disk.store.discard([turn.key])
        disk.settle()
        assert disk.write(newcomer)
        assert disk.lost == [other.key]


def test_files_that_cannot_be_told_of_a_use_are_read_all_the_same(tmp_path: Path) -> None:
    clock, files = Clock(), FaultyFiles(Trouble.PERMISSION)
    (record,) = heads(1)
    with Disk(tmp_path, files=files, clock=clock) as disk:
        disk.index()
        assert disk.write(record)
        clock.now += 3600
        files.strike_next("touch")
        assert disk.read(record) == payload_of(record)
        disk.settle()
        assert disk.faults == {"permission": 1}
        assert disk.read(record) == payload_of(record)
        assert disk.lost == []


def test_pins_and_what_lies_before_them_stay(tmp_path: Path) -> None:
    head, turn, *_ = conversation()
    (newcomer,) = heads(1)
    with Disk(tmp_path, size_bytes=size_of(head, turn) + 100) as disk:
        disk.index()
        disk.store.set_pinned(turn.key, True)
        assert disk.write(head)
        assert disk.write(turn)
        assert not disk.write(newcomer)
        assert disk.unwritten == {"no_room": 1}
        assert disk.read(head) == payload_of(head)
        disk.store.set_pinned(turn.key, False)
        assert disk.write(newcomer)
        assert disk.lost == [turn.key, head.key]


def test_a_record_never_takes_the_room_of_those_before_it(tmp_path: Path) -> None:
    head, turn, *_ = conversation()
    with Disk(tmp_path, size_bytes=size_of(head, turn) - 1) as disk:
        disk.index()
        assert disk.write(head)
        assert not disk.write(turn)
        assert disk.unwritten == {"no_room": 1}
        assert disk.lost == []


def test_a_record_larger_than_the_tier_is_refused_at_once(tmp_path: Path) -> None:
    (record,) = heads(1)
    with Disk(tmp_path, size_bytes=size_of(record) - 1) as disk:
        disk.index()
        assert disk.queue(record) is None
        assert disk.unwritten == {"oversize": 1}


def test_the_limit_is_on_all_namespaces_and_the_least_recently_used_of_any_goes(tmp_path: Path) -> None:
    theirs, ours = heads(2)
    filled(tmp_path, [theirs], namespace=OTHER)
    with Disk(tmp_path, size_bytes=size_of(theirs, ours)) as disk:
        assert disk.index() == []
        assert disk.write(ours)
        assert file_of(tmp_path, theirs, OTHER).exists()
        assert disk.store.used_bytes == size_of(theirs, ours)
    with Disk(tmp_path, size_bytes=size_of(theirs)) as disk:
        disk.index()
        disk.settle()
        assert not file_of(tmp_path, theirs, OTHER).exists()
        assert file_of(tmp_path, ours).exists()
        assert disk.lost == []


def test_what_cannot_be_used_goes_first(tmp_path: Path) -> None:
    clock = Clock()
    orphan_of, orphan = (record := rows_record([1])), rows_record([2], after=record, payload_bytes=9000)
    old, broken, new = heads(3)
    filled(tmp_path, [old, orphan_of, orphan, broken], clock=clock)
    os.truncate(file_of(tmp_path, broken), 9000)
    file_of(tmp_path, orphan_of).unlink()
    with Disk(tmp_path, size_bytes=2 * size_of(old)) as disk:
        disk.index()
        disk.settle()
        assert disk.write(new)
        assert not file_of(tmp_path, broken).exists()
        assert not file_of(tmp_path, orphan).exists()
        assert disk.read(old) == payload_of(old)


def test_the_last_use_outlives_the_process(tmp_path: Path) -> None:
    clock = Clock()
    first, second, third = heads(3)
    filled(tmp_path, [first, second])
    for record, at in ((first, 1e9), (second, 1e9 + 10)):
        os.utime(file_of(tmp_path, record), (at, at))
    with Disk(tmp_path, clock=clock) as disk:
        disk.index()
        clock.now += 3600
        assert disk.read(first) == payload_of(first)
        disk.settle()
    with Disk(tmp_path, size_bytes=size_of(first, third)) as disk:
        disk.index()
        assert disk.write(third)
        assert disk.lost == [second.key]


def test_a_full_queue_leaves_writes_out(tmp_path: Path) -> None:
    first, second, third = heads(3)
    with Disk(tmp_path, queue_bytes=25_000) as disk:
        disk.index()
        with disk.busy():
            queued = [disk.queue(record) for record in (first, second, third)]
            assert queued[2] is None
            assert disk.unwritten == {"queue_full": 1}
        assert [written.result(WAIT_SECONDS) for written in queued[:2] if written] == [True, True]
        disk.settle()
        assert disk.write(third)


def test_one_write_may_be_larger_than_the_queue(tmp_path: Path) -> None:
    (record,) = heads(1)
    with Disk(tmp_path, queue_bytes=1) as disk:
        disk.index()
        assert disk.write(record)


def test_a_full_disk_is_not_written_to_for_a_while(tmp_path: Path) -> None:
    clock, files = Clock(), FaultyFiles(Trouble.NO_SPACE)
    first, second = heads(2)
    with Disk(tmp_path, files=files, clock=clock) as disk:
        disk.index()
        files.strike_next("write")
        assert not disk.write(first)
        assert disk.queue(second) is None
        assert (disk.faults, disk.unwritten) == ({"no_space": 1}, {"paused": 1})
        clock.now += PAUSE_SECONDS
        assert disk.write(second)


def test_what_is_discarded_is_gone_whether_it_was_written_or_not(tmp_path: Path) -> None:
    first, second = heads(2)
    with Disk(tmp_path) as disk:
        disk.index()
        assert disk.write(first)
        with disk.busy():
            queued = disk.queue(second)
            disk.store.discard([first.key, second.key])
        assert queued is not None
        assert not queued.result(WAIT_SECONDS)
        disk.settle()
        assert disk.read(first) is None
        assert disk.store.used_bytes == 0
        assert disk.lost == []
        assert disk.write(first), "it may be written again"


def test_a_record_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    (record,) = heads(1)
    filled(tmp_path, [record])
    with Disk(tmp_path) as disk:
        disk.index()
        assert disk.write(record)
        assert disk.store.counters().written_records == 0


def test_at_the_end_pins_are_written_first_with_what_lies_before_them(tmp_path: Path) -> None:
    head, turn, *_ = conversation()
    (other,) = heads(1)
    with Disk(tmp_path) as disk:
        disk.index()
        order: list[bytes] = []

        def note(key: bytes, there: bool) -> None:
            assert there
            order.append(key)

        disk.store.set_pinned(turn.key, True)
        with disk.busy():
            for record in (other, head, turn):
                disk.store.write(record, memoryview(payload_of(record)), partial(note, record.key))
            closing = disk.begin_close()
        closing.join(WAIT_SECONDS)
        assert order == [head.key, turn.key, other.key]


def test_what_there_is_no_time_for_is_not_there(tmp_path: Path) -> None:
    records = heads(2)
    disk = Disk(tmp_path)
    disk.index()
    with disk.busy():
        queued = [disk.queue(record) for record in records]
        closing = disk.begin_close(timeout_seconds=0.0)
        assert disk.store._writer.stopped.wait(WAIT_SECONDS)
    closing.join(WAIT_SECONDS)
    assert [written.result(WAIT_SECONDS) for written in queued if written] == [False, False]
    assert disk.unwritten == {"closed": 2}
    with Disk(tmp_path) as again:
        assert again.index() == []


def test_a_store_is_not_closed_while_a_write_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "STOP_SECONDS", 0.0)
    disk = Disk(tmp_path)
    with disk.busy():
        disk.close(timeout_seconds=0.0)
        assert not disk.store.is_closed
    monkeypatch.undo()
    disk.close()
    assert disk.store.is_closed


def test_a_store_is_not_closed_while_a_read_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "STOP_SECONDS", 0.0)
    disk, answers = Disk(tmp_path), threading.Event()

    def hang() -> None:
        answers.wait(WAIT_SECONDS)

    disk.store._readers.do(hang)
    disk.close()
    assert not disk.store.is_closed
    answers.set()
    monkeypatch.undo()
    disk.close()
    assert disk.store.is_closed


def test_a_second_server_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        with pytest.raises(ConfigError, match=rf"--cache-disk: .*process {os.getpid()}\)"):
            Disk(tmp_path)
        disk.index()
        assert disk.write(heads(1)[0])
    Disk(tmp_path).close()


def test_a_directory_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--cache-disk: .* cannot be used: Not a directory"):
        Disk(tmp_path / "file" / "tier")


def test_reading_has_a_speed_once_something_was_read(tmp_path: Path) -> None:
    ticks = iter(range(100))
    (record,) = heads(1)
    filled(tmp_path, [record])
    with Disk(tmp_path, timer=lambda: next(ticks)) as disk:
        disk.index()
        assert disk.store.read_seconds_per_byte is None
        disk.read(record)
        assert disk.store.read_seconds_per_byte == 1 / record.payload_bytes
