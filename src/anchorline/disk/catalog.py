"""Which files there are, what they take, and which go first when room is needed. Pure.

Files go in this order: what can't be used, then what was used longest ago. Records that others follow go after those,
and a use of a record is one of all before it. What is pinned stays, with all before it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Entry:
    """One file, by its name: its path within the directory of the tier."""

    size_bytes: int
    last_use_seconds: float
    """Since the epoch."""
    file_use_seconds: float
    """The same as the file tells it, for the next process; lags behind."""
    parent: str | None = None
    """Name of the record before it."""
    owner: str | None = None
    """The tenant whose it is; None for what is common to all, and for a file that does not tell."""
    usable: bool = True
    """False for what is no record, or a damaged one."""
    stuck: bool = False
    """It could not be removed."""


class Catalog:
    """The files of all namespaces. Not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._pinned: set[str] = set()
        self.used_bytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: str, entry: Entry) -> None:
        """Take note of a file, in the place of one of the same name."""
        self.remove(name)
        self._entries[name] = entry
        self.used_bytes += entry.size_bytes

    def remove(self, name: str) -> Entry | None:
        """Forget a file; None when it is not known."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            self.used_bytes -= entry.size_bytes
        return entry

    def mark_unusable(self, name: str) -> None:
        if name in self._entries:
            self._entries[name].usable = False

    def mark_stuck(self, name: str) -> None:
        if name in self._entries:
            self._entries[name].stuck = True

    def is_usable(self, name: str) -> bool:
        return name in self._entries and self._entries[name].usable

    def copy(self) -> Catalog:
        """The same files, to look for victims in while this one goes on changing."""
        copied = Catalog()
        copied._entries, copied._pinned = dict(self._entries), set(self._pinned)
        copied.used_bytes = self.used_bytes
        return copied

    def pin(self, name: str, pinned: bool) -> None:
        """A file may be pinned before it is there."""
        if pinned:
            self._pinned.add(name)
        else:
            self._pinned.discard(name)

    @property
    def pinned(self) -> frozenset[str]:
        return frozenset(self._pinned)

    def below(self, directory: str) -> list[str]:
        """Names of the files in a directory and its directories."""
        return [name for name in self._entries if name.startswith(f"{directory}/")]

    def owned(self, owner: str, directory: str, *, keep: Iterable[str]) -> list[str]:
        """Names of the files below ``directory`` that are or may be ``owner``'s, but for ``keep`` and what lies before.

        Any tenant's may be what cannot be used and does not tell whose it is.
        """
        stay = {each for name in keep for each in self._lineage(name)}
        return [name for name in self.below(directory) if name not in stay and _may_be_of(self._entries[name], owner)]

    def missing_bytes(self, size_bytes: int, *, limit_bytes: int) -> int:
        """What has to go before ``size_bytes`` more fit within the limit."""
        return max(0, self.used_bytes + size_bytes - limit_bytes)

    def size_of(self, names: Iterable[str]) -> int:
        return sum(self._entries[name].size_bytes for name in names)

    def use(self, name: str | None, now_seconds: float, *, lag_seconds: float) -> list[str]:
        """Note a use of a record and of all before it.

        Names those whose file is to be told: it says that the last use was more than ``lag_seconds`` ago.
        """
        stale: list[str] = []
        for each in self._lineage(name):
            entry = self._entries[each]
            if entry.last_use_seconds >= now_seconds:
                break  # and so was what lies before it
            entry.last_use_seconds = now_seconds
            if now_seconds - entry.file_use_seconds > lag_seconds:
                entry.file_use_seconds = now_seconds
                stale.append(each)
        return stale

    def unusable(self) -> list[str]:
        """Names of files that are no records, or whose parent is not there."""
        return [name for name, whole in self._rooted().items() if not whole]

    def victims(self, size_bytes: int, *, spare_bytes: int = 0, keep: str | None = None) -> list[str]:
        """Names of files that hold ``size_bytes`` together, in the order in which they go; fewer when no more may.

        Some more of them where those fit in ``spare_bytes``. ``keep`` and what lies before it stays.
        """
        stay = self._staying(keep)
        rooted = self._rooted()
        followers = Counter(entry.parent for entry in self._entries.values() if entry.usable and entry.parent)
        heap: list[tuple[bool, float, str]] = []

        def offer(name: str) -> None:
            entry = self._entries[name]
            if name not in stay and not entry.stuck:
                heapq.heappush(heap, (rooted[name], entry.last_use_seconds, name))

        for name in self._entries:
            # What can't be used, like what lacks its root, needs to wait for nothing.
            if not rooted[name] or not followers[name]:
                offer(name)
        chosen: list[str] = []
        while heap:
            whole, _, name = heapq.heappop(heap)
            entry = self._entries[name]
            if size_bytes <= 0 and entry.size_bytes > spare_bytes + size_bytes:
                break
            chosen.append(name)
            size_bytes -= entry.size_bytes
            if whole and entry.parent is not None:
                followers[entry.parent] -= 1
                if not followers[entry.parent]:
                    offer(entry.parent)
        return chosen

    def _lineage(self, name: str | None) -> Iterator[str]:
        """``name`` and what lies before it, as far as it is there."""
        while name is not None and name in self._entries:
            yield name
            name = self._entries[name].parent

    def _staying(self, keep: str | None) -> set[str]:
        stay: set[str] = set()
        for name in (*self._pinned, keep):
            for each in self._lineage(name):
                if each in stay:
                    break
                stay.add(each)
        return stay

    def _rooted(self) -> Mapping[str, bool]:
        """Of each file, whether it and all before it are there and usable."""
        rooted: dict[str, bool] = {}
        for name in self._entries:
            path = []
            at: str | None = name
            while at is not None and at not in rooted and self.is_usable(at):
                path.append(at)
                at = self._entries[at].parent
            whole = at is None or rooted.get(at, False)
            rooted.update(dict.fromkeys(path, whole))
            rooted.setdefault(name, whole)
        return rooted


def _may_be_of(entry: Entry, owner: str) -> bool:
    return entry.owner == owner or (entry.owner is None and not entry.usable)
