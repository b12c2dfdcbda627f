"""The disk tier of one cache: what is written behind, what is read back, and which files belong to which nodes.

    save  ── spilling ──▸ store ──▸ files ──▸ index at start ── stored ──▸ nodes that lie on disk alone
    call  ◂── loading ◂── store ◂── files

All of it is done on the engine thread and waits for nothing; the store's own threads read and write.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from anchorline.cache.loading import Load, Loader
from anchorline.cache.pins import Pins
from anchorline.cache.plan import Speeds
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.spilling import Post, Spiller
from anchorline.cache.storage import HostStorage
from anchorline.cache.stored import StoredIndex, Unattached
from anchorline.cache.tree import SegmentTree
from anchorline.disk.counters import DiskCounters
from anchorline.disk.record import SegmentRecord, SegmentStore

log = logging.getLogger("anchorline.disk")

MIN_LOAD_SECONDS = 10.0
"""How long a call is held for the disk at least before it is prefilled instead …"""
LOAD_PATIENCE = 4.0
"""… or so many times what prefilling the same is expected to take, where that is longer."""
REST_SECONDS = 60.0
"""How long nothing more is read after that."""

ATTACHED_PER_STEP = 64
"""Records found at start that are taken up between two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStats:
    """The disk tier in figures; counters only grow. Without one all are 0."""

    enabled: bool = False
    indexed: bool = False
    """Whether all that was there at the start is known."""
    used_bytes: int = 0
    """Of all files, those of other namespaces too."""
    limit_bytes: int = 0
    records: int = 0
    """Rows and states that can be restored."""
    pending_writes: int = 0
    """Rows and states that are being written, or wait to be."""
    loads: int = 0
    """Times that calls waited for records to be read."""
    refused_loads: int = 0
    """Times that the host tier had no room for what was to be read."""
    given_up_loads: int = 0
    """Times that reading took too long."""
    unattached: Counter[str] = field(default_factory=Counter)
    """Records that were found and cannot be used, by ``Unattached``."""
    store: DiskCounters = field(default_factory=DiskCounters)


class DiskTier:
    """Owned by the engine thread. ``post`` brings what the store has to tell onto it."""

    def __init__(
        self,
        *,
        tree: SegmentTree,
        storage: HostStorage,
        index: StoredIndex,
        pins: Pins,
        store: SegmentStore,
        post: Post,
        clock: Callable[[], float],
        indexed: Callable[[], None] = lambda: None,
    ) -> None:
        """``clock`` is monotonic; ``indexed`` is called once all that was there at the start is attached."""
        self.store = store
        self.loader = Loader(tree=tree, storage=storage, index=index, store=store, post=post)
        self._index = index
        self._pins = pins
        self._spiller = Spiller(index, store, post)
        self._post = post
        self._clock = clock
        self._indexed = indexed
        self._found: deque[SegmentRecord] = deque()
        self._all_found = False
        self._rests_until = 0.0
        self._cleared: set[str | None] = set()
        """Tenants who have cleared what they had before all of it was found."""
        self._pinned: set[bytes] = set()
        self._pins_seen: tuple[int, int] = (0, 0)

    # -- the start ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read what is there; the cache works meanwhile, and knows more with every step."""
        self.store.watch_losses(lambda keys: self._post(lambda: self._index.lose(keys, Absence.EVICTED)))
        self.store.index(
            lambda records: self._post(lambda: self._found.extend(records)),
            lambda orphans: self._post(lambda: self._note_all_found(orphans)),
        )

    def _note_all_found(self, orphans: int) -> None:
        self._all_found = True
        if orphans:
            self._index.unattached[Unattached.ORPHAN] += orphans

    @property
    def has_work(self) -> bool:
        return bool(self._found or self._index.unwanted) or self._all_found != self._index.is_complete

    def step(self) -> None:
        """Take up some of the records that were found, delete files, and end loads that take too long."""
        for _ in range(min(ATTACHED_PER_STEP, len(self._found))):
            record = self._found.popleft()
            if record.owner in self._cleared:
                self._index.refuse(record)
            else:
                self._index.attach(record)
        if self._all_found and not self._found and not self._index.is_complete:
            self._index.complete()
            self._indexed()
        self._delete_unwanted()
        if self.loader.is_waiting and self.loader.give_up_late(now := self._clock()):
            self._rests_until = now + REST_SECONDS
            log.warning("the disk tier does not answer; nothing is read from it for %.0f s", REST_SECONDS)

    def _delete_unwanted(self) -> None:
        if self._index.unwanted:
            self.store.discard(self._index.unwanted.copy())
            self._index.unwanted.clear()

    # -- while calls come ---------------------------------------------------------------------

    @property
    def read_seconds_per_byte(self) -> float:
        """As measured, or assumed before the first read."""
        return self.store.read_seconds_per_byte or Speeds().load_seconds_per_byte

    @property
    def is_resting(self) -> bool:
        """Whether nothing is to be read, as the disk did not answer a while ago."""
        return self._rests_until > 0 and self._clock() < self._rests_until

    def load(self, path: Sequence[Segment], end: int, *, worth: float, prefill_seconds: float) -> Load | None:
        """Start to read what the host tier lacks of ``path`` up to ``end``; see ``Loader.begin``.

        It is given up after a while, for which ``prefill_seconds`` is what prefilling the same would take.
        """
        until = self._clock() + max(MIN_LOAD_SECONDS, LOAD_PATIENCE * prefill_seconds)
        return self.loader.begin(path, end, worth=worth, until_seconds=until)

    def after_save(self, path: Sequence[Segment]) -> None:
        """Write what is new of a history that was just saved, whose pins have been made."""
        self._spiller.write_path(path)
        self._tell_pins()

    def note_use(self, path: Iterable[Segment]) -> None:
        """A call held these tokens: what of them is on disk was of use."""
        used = {stored.record.key for node in path for stored in (node.stored, node.stored_state) if stored is not None}
        if used:
            self.store.note_use(list(used))

    def clear(self, tenant: str, deleted: Callable[[int], None]) -> None:
        """Delete all files of ``tenant`` that no node of its needs, also what of them the index left out.

        What is found of it from now on was there before: it is not wanted either. ``deleted`` is told how many files
        could not be, on a thread of the store.
        """
        if not self._index.is_complete:
            self._cleared.add(tenant)
        needed = self._index.lose_owned(tenant)
        self._delete_unwanted()
        self.store.discard_owned(tenant, needed, deleted)

    def write_pinned(self) -> None:
        """Write what is pinned and is not on disk, before the end."""
        for segment in self._pins.segments():
            self._spiller.write_path(_path_to(segment))
        self.step()
        self._tell_pins()

    def stats(self) -> DiskStats:
        """What there is to tell, as of now."""
        return DiskStats(
            enabled=True,
            indexed=self._index.is_complete,
            used_bytes=self.store.used_bytes,
            limit_bytes=self.store.limit_bytes,
            records=len(self._index),
            pending_writes=self._spiller.pending_writes,
            loads=self.loader.loads,
            refused_loads=self.loader.refused,
            given_up_loads=self.loader.given_up,
            unattached=self._index.unattached.copy(),
            store=self.store.counters(),
        )

    def _tell_pins(self) -> None:
        """Tell the store which records hold pinned segments, where that has changed."""
        seen = (self._pins.changes, self._index.changes)
        if seen == self._pins_seen:
            return
        self._pins_seen = seen
        pinned = set(_pinned_keys(self._pins.segments()))
        for key in pinned ^ self._pinned:
            self.store.set_pinned(key, key in pinned)
        self._pinned = pinned


def _path_to(segment: Segment) -> list[Segment]:
    """The segments from the root's child down to ``segment``."""
    path = [segment]
    while (above := path[-1].parent) is not None and above.parent is not None:
        path.append(above)
    return path[::-1]


def _pinned_keys(segments: Iterable[Segment]) -> Iterable[bytes]:
    """The records that pins of ``segments`` need: the rows of their paths, the states at their ends."""
    walked: set[Segment] = set()
    for segment in segments:
        if segment.stored_state is not None:
            yield segment.stored_state.record.key
        node: Segment | None = segment
        while node is not None and node not in walked:
            walked.add(node)
            if node.stored is not None:
                yield node.stored.record.key
            node = node.parent
