"""Keeping the host tier within what the machine can spare, whatever its budget says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.pressure import growth_bytes, is_comfortable, is_short, shortage_bytes
from anchorline.engine.stream import Clock
from anchorline.machine import Memory

log = logging.getLogger("anchorline.engine")

CHECK_SECONDS = 1.0
CHECK_BYTES = 64 << 20
"""Memory is also looked at again once so much more was exported."""

ReadMemory = Callable[[], Memory | None]
"""``machine.read_memory``, passed in."""


@dataclass(slots=True)
class MemoryWatch:
    """Shrinks the cache while memory is short and lets it grow again afterwards. Owned by the engine thread."""

    cache: PrefixCache
    read: ReadMemory
    clock: Clock
    in_episode: bool = False
    """Memory was short and is not comfortable again."""
    _due_seconds: float = field(default=0.0, init=False)
    _due_bytes: int = field(default=0, init=False)

    def check(self) -> None:
        """Look at the machine's memory, unless that was done just now, and do what it asks for."""
        now, exported = self.clock(), self.cache.counters.exported_bytes
        if now < self._due_seconds and exported < self._due_bytes:
            return
        self._due_seconds, self._due_bytes = now + CHECK_SECONDS, exported + CHECK_BYTES
        memory = self.read()
        if memory is None:
            return
        if is_short(memory):
            memory = self._relieve(memory)
        elif self.in_episode and is_comfortable(memory):
            self.in_episode = False
            log.info("memory is no longer short: %s available; the cache may grow again", _mib(memory.available_bytes))
        self.cache.arena.limit(self.cache.arena.used_bytes + growth_bytes(memory))

    def _relieve(self, memory: Memory) -> Memory:
        """Give back free pages, then what is least worth keeping; memory as it is then."""
        arena, before = self.cache.arena, memory
        held = arena.used_bytes
        arena.return_pages()
        memory = self.read() or memory
        if is_short(memory):
            self.cache.give_back(shortage_bytes(memory))
            memory = self.read() or memory
        if not self.in_episode:
            self.in_episode = True
            self.cache.counters.pressure_episodes += 1
            log.warning(
                "memory is short: %s of %s available; the cache gave up %s and keeps %s",
                _mib(before.available_bytes),
                _mib(before.total_bytes),
                _mib(held - arena.used_bytes),
                _mib(arena.used_bytes),
            )
        return memory


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.0f} MiB"
