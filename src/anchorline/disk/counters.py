"""What the disk tier did, in numbers that only grow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Unwritten(StrEnum):
    """Why a record was not written, where no file was at fault."""

    QUEUE_FULL = "queue_full"
    """As many bytes wait to be written as may."""
    PAUSED = "paused"
    """The file system was full a moment ago."""
    NO_ROOM = "no_room"
    """What may be collected does not make room enough."""
    OVERSIZE = "oversize"
    """The record alone is larger than the whole tier may be."""
    CLOSED = "closed"
    """There was no time left at the end."""


@dataclass(slots=True)
class DiskCounters:
    indexed_records: int = 0
    """Found when the server started."""
    written_records: int = 0
    written_bytes: int = 0
    read_records: int = 0
    read_bytes: int = 0
    collected_files: int = 0
    collected_bytes: int = 0
    unwritten: Counter[str] = field(default_factory=Counter)
    """Records, by ``Unwritten``."""
    faults: Counter[str] = field(default_factory=Counter)
    """Files, by ``FaultKind``."""

    def copy(self) -> DiskCounters:
        """These counts, which no longer change."""
        return replace(self, unwritten=self.unwritten.copy(), faults=self.faults.copy())
