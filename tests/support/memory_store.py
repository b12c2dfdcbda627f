"""A segment store in memory that does what it is asked when the test says so, and fails where the test wants it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from anchorline.disk.counters import DiskCounters
from anchorline.disk.record import SegmentRecord


@dataclass(slots=True)
class Files:
    """What outlives a store: by key the record and its bytes."""

    kept: dict[bytes, tuple[SegmentRecord, bytes]] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(len(payload) for _, payload in self.kept.values())


@dataclass(slots=True)
class DiskFaults:
    """Chances of each failure, drawn from one seeded source."""

    random: Random = field(default_factory=lambda: Random(0))
    write: float = 0.0
    read: float = 0.0
    full: float = 0.0

    def strikes(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance


class MemoryStore:
    """Implements ``SegmentStore``: nothing happens before ``work`` is called."""

    def __init__(self, files: Files, *, faults: DiskFaults | None = None, batch: int = 3) -> None:
        self.files = files
        self.faults = faults or DiskFaults()
        self.read_seconds_per_byte: float | None = None
        self.jobs: deque[Callable[[], None]] = deque()
        self.reads: list[bytes] = []
        self.writes: list[bytes] = []
        self.used_keys: list[bytes] = []
        self.pinned: set[bytes] = set()
        self.is_closed = False
        self._batch = batch
        self._lost: Callable[[Sequence[bytes]], None] = lambda keys: None

    @property
    def used_bytes(self) -> int:
        return self.files.used_bytes

    @property
    def limit_bytes(self) -> int:
        return 1 << 30

    def counters(self) -> DiskCounters:
        return DiskCounters(written_records=len(self.writes), read_records=len(self.reads))

    def work(self, jobs: int | None = None) -> bool:
        """Do the next ``jobs`` things, or all; whether there was any."""
        had_any = bool(self.jobs)
        for _ in range(len(self.jobs) if jobs is None else min(jobs, len(self.jobs))):
            self.jobs.popleft()()
        return had_any

    def write(self, record: SegmentRecord, payload: memoryview, done: Callable[[bool], None]) -> bool:
        if self.faults.strikes(self.faults.full):
            return False

        def job() -> None:
            fails = self.faults.strikes(self.faults.write)
            if not fails:
                self.files.kept[record.key] = (record, bytes(payload))
                self.writes.append(record.key)
            done(not fails)

        assert payload.nbytes == record.payload_bytes
        self.jobs.append(job)
        return True

    def read(self, record: SegmentRecord, target: memoryview, done: Callable[[bool], None]) -> None:
        def job() -> None:
            self.reads.append(record.key)
            found = self.files.kept.get(record.key)
            assert found is None or record.tokens.tolist() == found[0].tokens.tolist(), "others' bytes are asked for"
            if found is None or self.faults.strikes(self.faults.read):
                target[:] = b"\xff" * target.nbytes
                self.files.kept.pop(record.key, None)
                done(False)
                return
            if target.nbytes:
                target[:] = found[1]
            done(True)

        assert target.nbytes == record.payload_bytes
        self.jobs.append(job)

    def index(self, found: Callable[[Sequence[SegmentRecord]], None], finished: Callable[[int], None]) -> None:
        records = sorted((record for record, _ in self.files.kept.values()), key=lambda each: (each.start, each.kind))

        def job(batch: Sequence[SegmentRecord]) -> None:
            found([record for record in batch if record.key in self.files.kept])

        for at in range(0, len(records), self._batch):
            self.jobs.append(partial(job, records[at : at + self._batch]))
        self.jobs.append(partial(finished, 0))

    def note_use(self, keys: Sequence[bytes]) -> None:
        self.used_keys.extend(keys)

    def set_pinned(self, key: bytes, pinned: bool) -> None:
        (self.pinned.add if pinned else self.pinned.discard)(key)

    def discard(self, keys: Sequence[bytes]) -> None:
        def job() -> None:
            for key in keys:
                self.files.kept.pop(key, None)

        self.jobs.append(job)

    def discard_owned(self, owner: str, keep: Collection[bytes], done: Callable[[int], None]) -> None:
        def job() -> None:
            for key in [key for key, (record, _) in self.files.kept.items() if record.owner == owner]:
                if key not in keep:
                    del self.files.kept[key]
            done(0)

        self.jobs.append(job)

    def watch_losses(self, lost: Callable[[Sequence[bytes]], None]) -> None:
        self._lost = lost

    def lose(self, keys: Sequence[bytes]) -> None:
        """Collect these files, as for room."""
        for key in keys:
            self.files.kept.pop(key, None)
        self._lost(keys)

    def close(self, timeout_seconds: float) -> None:
        if timeout_seconds:
            self.work()
        self.jobs.clear()
        self.is_closed = True
