"""What one file of the disk tier is: the rows of one exported span, or one state. Pure.

    rows    [parent ─────|start ═══════ end)     the ids of [start, end) and their rows
    state   [parent ──────────────── end)        what a stateful model needs to resume at ``end``

A record's parent is the rows record that holds the token before ``start``. A history may fork inside of a
parent's span, so ``start`` need not be where the parent ends.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from anchorline.disk.counters import DiskCounters
from anchorline.llama.interface import TokenArray

KEY_BYTES = 32


class RecordKind(IntEnum):
    ROWS = 1
    STATE = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentRecord:
    """One file, as its header describes it; ``tokens`` are int32 ids of [start, end), none for a state."""

    kind: RecordKind
    key: bytes
    parent: bytes | None
    """Key of the rows record before; None where ``start`` is 0."""
    start: int
    end: int
    """A state has ``start == end``: the position it resumes at."""
    owner: str | None
    """The tenant whose it is; None for what is common to all."""
    tokens: TokenArray
    payload_bytes: int
    call_class: int = 0
    """Of the calls that held it, when it was written."""
    ends_reply: bool = False
    """Of a state: captured where a stream ended, not at a cut of its prompt."""


def record_key(
    kind: RecordKind, *, parent: bytes | None, start: int, end: int, owner: str | None, tokens: TokenArray
) -> bytes:
    """The name of a record: sha256 over its place in the tree of histories and its ids. Never decides a match alone."""
    digest = hashlib.sha256(b"anchorline segment\0")
    name = b"" if owner is None else b"\1" + owner.encode("utf-8", "surrogatepass")
    digest.update(struct.pack("<BQQI", kind, start, end, len(name)))
    digest.update(name)
    digest.update(bytes(KEY_BYTES) if parent is None else parent)
    digest.update(tokens.astype("<i4", copy=False).tobytes())
    return digest.digest()


class SegmentStore(Protocol):
    """The files of one namespace, as the engine sees them.

    No method waits for the disk, except ``close``. Callbacks run on a thread of the store.
    """

    @property
    def used_bytes(self) -> int:
        """Of all files, headers included."""

    @property
    def limit_bytes(self) -> int:
        """What they may take."""

    def counters(self) -> DiskCounters:
        """A copy that no longer changes."""

    @property
    def read_seconds_per_byte(self) -> float | None:
        """Measured while reading and verifying, smoothed; None before the first read."""

    def write(self, record: SegmentRecord, payload: memoryview, done: Callable[[bool], None]) -> bool:
        """Queue a write of ``payload``, which stays valid until ``done`` says whether the file is there.

        False when the queue is full, which is counted; ``done`` is not called then.
        """

    def read(self, record: SegmentRecord, target: memoryview, done: Callable[[bool], None]) -> None:
        """Read the payload into ``target``, of just its size, and verify it.

        ``done(False)`` on any fault, counted by its kind; the record is then not used again.
        """

    def index(self, found: Callable[[Sequence[SegmentRecord]], None], finished: Callable[[int], None]) -> None:
        """Read the headers of all files, in batches and parents before children; payloads stay unread.

        ``finished`` is told how many records were left out, since what is before them is not there.
        """

    def note_use(self, keys: Sequence[bytes]) -> None:
        """These were of use just now: they are collected later than others."""

    def set_pinned(self, key: bytes, pinned: bool) -> None:
        """Pinned records are collected last."""

    def discard(self, keys: Sequence[bytes]) -> None:
        """Delete these files."""

    def discard_owned(self, owner: str, keep: Collection[bytes], done: Callable[[int], None]) -> None:
        """Delete what is or may be ``owner``'s, also what the index left out, but for ``keep`` and what lies before.

        ``done`` is told how many files could not be deleted, once all were tried.
        """

    def watch_losses(self, lost: Callable[[Sequence[bytes]], None]) -> None:
        """Call ``lost`` with the keys of files that went without having been discarded."""

    def close(self, timeout_seconds: float) -> None:
        """Write what is queued, pinned first, for as long as that; then stop. What is left is not there."""

    @property
    def is_closed(self) -> bool:
        """Whether it touches no memory any more that it was given; a disk that hangs may outlast ``close``."""
