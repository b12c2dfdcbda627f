"""A map that forgets what was used longest ago once it holds too much."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 200
"""What an entry costs besides its content (dict slot, key and value objects), roughly."""


class ByteMemo(Generic[K, V]):
    """A thread-safe LRU map bounded by the bytes its owner says each entry holds, and by entries if so asked."""

    def __init__(self, limit_bytes: int, *, limit_entries: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._limit_entries = limit_entries
        self._used_bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value of ``key``, which becomes the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, content_bytes: int) -> None:
        """Keep ``value``; an entry larger than a quarter of the whole is not kept at all."""
        cost = content_bytes + ENTRY_BYTES
        over = None if self._limit_entries is None else self._limit_entries + 1
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._used_bytes -= old[1]
            if cost > self._limit_bytes // 4:
                return
            self._entries[key] = (value, cost)
            self._used_bytes += cost
            while self._used_bytes > self._limit_bytes or len(self._entries) == over:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._used_bytes -= dropped

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._entries)
