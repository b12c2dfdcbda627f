"""A job that fails in a way that nobody thought of is counted before anybody hears that it has ended."""

from __future__ import annotations

from anchorline.disk.writer import PendingWrite, Writer
from tests.support.disk import conversation, payload_of


def test_a_write_that_fails_is_handed_on_before_its_end_is_told() -> None:
    record, told = conversation()[0], list[object]()

    def fail(write: PendingWrite) -> bool:
        raise MemoryError

    writer = Writer(fail, queue_bytes=1 << 20, failed=lambda error: told.append(type(error)))
    assert writer.submit(PendingWrite(record, memoryview(payload_of(record)), told.append)) is None
    writer.close(10.0, first=())
    assert told == [MemoryError, False]
