"""Taking bytes for rows and states from the host arena, and making room for them by eviction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from anchorline.cache.eviction import Victims
from anchorline.cache.host import Extent, HostArena
from anchorline.cache.policy import KeepValue, Moment
from anchorline.cache.rows import Rows, State
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.tree import SegmentTree

Allocate = Callable[[int], memoryview | None]
GiveUp: TypeAlias = Callable[[], bool]
"""Frees something in an arena; False when there is nothing that may go."""
Export = Callable[[int, int, Allocate], memoryview | None]
"""Exports the rows of [start, end) into memory from the allocator; None when that gave none."""
ExportState = Callable[[Allocate], memoryview | None]
"""Exports the state at a live sequence's tip in the same way."""


MERGE_EVICTION_SHARE = 0.125
"""A merged copy, larger than this share of the budget, is made only where room is free: nothing goes for it."""


@dataclass(slots=True)
class CacheCounters:
    """What happened so far; only grows."""

    saved_segments: int = 0
    saved_states: int = 0
    exported_bytes: int = 0
    restored_bytes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    restore_failures: int = 0
    pressure_episodes: int = 0
    """Times that the machine's memory ran short."""
    pressure_bytes: int = 0
    """Given up for that; part of ``evicted_bytes``."""
    unsaved: Counter[str] = field(default_factory=Counter)
    """What was not kept, by reason: an ``Absence``."""
    merged_segments: int = 0
    """Segments that were exported again with their neighbours, as one."""
    merged_bytes: int = 0
    unmerged: Counter[str] = field(default_factory=Counter)
    """Attempts to shorten a chain that failed, by reason."""

    def copy(self) -> CacheCounters:
        """These counts, which no longer change."""
        return replace(self, unsaved=self.unsaved.copy(), unmerged=self.unmerged.copy())


def nothing_parked() -> bool:
    """Nobody else keeps anything in the arena."""
    return False


class HostStorage:
    """What a tree keeps in an arena. Room is made by giving up what is worth less; what does not fit is counted.

    What something is worth is said in the policy's own terms (``worth``).
    """

    def __init__(
        self,
        tree: SegmentTree,
        *,
        arena: HostArena,
        keep_value: KeepValue,
        bytes_per_token: float,
        drop_parked: GiveUp = nothing_parked,
    ) -> None:
        """``bytes_per_token`` is the estimate by which rows are judged that are not exported yet.

        ``drop_parked`` gives up what trees that are not in use keep in ``arena``; it goes before anything of this one.
        """
        self.arena = arena
        self.counters = CacheCounters()
        self._drop_parked = drop_parked
        self._taken: set[Extent] = set()
        self._tree = tree
        self._keep_value = keep_value
        self._bytes_per_token = bytes_per_token

    def worth(self, segments: Sequence[Segment]) -> float:
        """What the best of ``segments``, kept or not, is worth now."""
        return max(self._keep_value(segment, self._moment) for segment in segments)

    @property
    def _moment(self) -> Moment:
        tree = self._tree
        return Moment(tick=tree.tick, turn=tree.turn, stateful=tree.stateful, bytes_per_token=self._bytes_per_token)

    def store_rows(self, start: int, end: int, export: Export, *, worth: float) -> Rows | Absence:
        """The exported rows of [start, end), or why there are none."""
        stored = self._store(lambda allocate: export(start, end, allocate), worth=worth)
        if isinstance(stored, Absence):
            self.counters.unsaved[stored] += 1
            return stored
        memory, free = stored
        self.counters.saved_segments += 1
        self.counters.exported_bytes += memory.nbytes
        return Rows(memory, start, end, free)

    @property
    def merge_room_bytes(self) -> int:
        """How large a merged copy may be: what is free at once, or the share that others may be evicted for."""
        return max(self.arena.largest_free_bytes, int(self.arena.budget_bytes * MERGE_EVICTION_SHARE))

    def store_merged(self, start: int, end: int, export: Export, *, worth: float) -> Rows | None:
        """The rows of [start, end), which are kept in parts, as one; None when there is no room (counted)."""
        stored = self._store(lambda allocate: export(start, end, allocate), worth=worth)
        if isinstance(stored, Absence):
            self.counters.unmerged[stored] += 1
            return None
        memory, free = stored
        self.counters.merged_bytes += memory.nbytes
        return Rows(memory, start, end, free)

    def store_state(self, export: ExportState, *, worth: float, ends_reply: bool) -> State | Absence:
        """The exported state, or why there is none."""
        stored = self._store(export, worth=worth)
        if isinstance(stored, Absence):
            self.counters.unsaved[stored] += 1
            return stored
        memory, free = stored
        self.counters.saved_states += 1
        self.counters.exported_bytes += memory.nbytes
        return State(memory, free, ends_reply=ends_reply)

    def reserve(self, size_bytes: int, *, worth: float) -> tuple[memoryview, Callable[[], None]] | Absence:
        """Bytes to fill with what is read from disk and what frees them, or why there are none."""
        if not size_bytes:
            return memoryview(bytearray()), lambda: None
        return self._store(lambda allocate: allocate(size_bytes), worth=worth)

    def _store(self, export: ExportState, *, worth: float) -> tuple[memoryview, Callable[[], None]] | Absence:
        extents: list[Extent] = []
        reasons: list[Absence] = []
        victims = self.victims()

        def allocate(size_bytes: int) -> memoryview | None:
            taken = self._take(size_bytes, victims, worth=worth)
            if isinstance(taken, Absence):
                reasons.append(taken)
                return None
            extents.append(taken)
            self._taken.add(taken)
            return self.arena.view(taken)

        def free() -> None:
            for extent in extents:
                self._taken.remove(extent)
                self.arena.free(extent)

        memory = export(allocate)
        if memory is not None:
            return memory, free
        free()
        return reasons[-1] if reasons else Absence.EXPORT_FAILED

    def _take(self, size_bytes: int, victims: Victims, *, worth: float) -> Extent | Absence:
        if size_bytes > self.arena.budget_bytes:
            return Absence.OVERSIZE
        if size_bytes > self.arena.limit_bytes:
            return Absence.MEMORY_SHORT
        extent = self.arena.allocate(size_bytes)
        while extent is None:
            if not self._evict(victims, below=worth):
                return Absence.NO_ROOM
            extent = self.arena.allocate(size_bytes)
        return extent

    def free(self, size_bytes: int) -> int:
        """Evict the least valuable until ``size_bytes`` more are free; the bytes freed, less when no more may go."""
        before = self.arena.used_bytes
        victims = self.victims()
        while before - self.arena.used_bytes < size_bytes and self._evict(victims):
            pass
        return before - self.arena.used_bytes

    def free_all(self) -> None:
        """Return everything to the arena, whoever holds it; nothing of it may be used or freed any more."""
        while self._taken:
            self.arena.free(self._taken.pop())

    def victims(self) -> Victims:
        """What may go, in its order, as things are now."""
        return Victims(self._tree, self._keep_value, self._moment)

    def _evict(self, victims: Victims, *, below: float = math.inf) -> bool:
        """Give up one thing that is worth less than ``below``; False when there is none."""
        before = self.arena.used_bytes
        if not self._drop_parked() and not victims.drop_next(below=below):
            return False
        self.counters.evictions += 1
        self.counters.evicted_bytes += before - self.arena.used_bytes
        return True
