"""The host tier: one reserved arena of RAM from which segments take and return byte ranges.

The arena is reserved once, at the size of the budget, so nothing can be allocated past it. Pages
cost memory from their first use on and are kept: an export into used pages runs at memory speed,
into new ones at the speed of page faults. The lowest range that fits is taken, so that used pages
are taken first. Pages of free ranges go back to the system only when it runs short (``return_pages``).
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from anchorline.errors import ConfigError

ALIGNMENT_BYTES = 64
_MAP_NORESERVE = 0x4000
"""Linux's flag value; Python's mmap module names it from 3.13 on."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A byte range of the arena; ``size_bytes`` is what was asked, rounding is the arena's."""

    offset: int
    size_bytes: int


class FreeRanges:
    """The free byte ranges of an arena, ascending and never adjacent."""

    def __init__(self, total_bytes: int) -> None:
        self._offsets = [0]
        self._sizes = [total_bytes]
        self.free_bytes = total_bytes

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(offset, size) of each."""
        return zip(self._offsets, self._sizes, strict=True)

    @property
    def largest(self) -> int:
        return max(self._sizes, default=0)

    def take(self, size: int) -> int | None:
        """Offset of the lowest range that holds ``size`` bytes, or None."""
        for index, available in enumerate(self._sizes):
            if available < size:
                continue
            offset = self._offsets[index]
            if available == size:
                del self._offsets[index], self._sizes[index]
            else:
                self._offsets[index] += size
                self._sizes[index] -= size
            self.free_bytes -= size
            return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Return a taken range; it merges with free neighbours."""
        index = bisect_left(self._offsets, offset)
        self.free_bytes += size
        joins_left = index > 0 and self._offsets[index - 1] + self._sizes[index - 1] == offset
        joins_right = index < len(self._offsets) and offset + size == self._offsets[index]
        if joins_left and joins_right:
            self._sizes[index - 1] += size + self._sizes[index]
            del self._offsets[index], self._sizes[index]
        elif joins_left:
            self._sizes[index - 1] += size
        elif joins_right:
            self._offsets[index] = offset
            self._sizes[index] += size
        else:
            self._offsets.insert(index, offset)
            self._sizes.insert(index, size)


class HostArena:
    """RAM for segments, at most ``budget_bytes``. Not thread-safe; owned by the engine thread."""

    def __init__(self, budget_bytes: int) -> None:
        """Raises ConfigError when the system does not give so much address space."""
        self._size_bytes = self.budget_bytes = _whole(budget_bytes)
        self.limit_bytes = self.budget_bytes
        """What may be taken at present; less than the budget while the machine's memory is short."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, self.budget_bytes, flags=flags)
        except OSError as error:
            raise ConfigError(
                f"--cache-ram: {self.budget_bytes} bytes cannot be reserved ({error.strerror}); make it smaller, "
                f"or allow this process more (ulimit -v, vm.overcommit_memory)"
            ) from error
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._memory = memoryview(self._map)
        self._ranges = FreeRanges(self._size_bytes)

    def set_aside(self, size_bytes: int) -> None:
        """Let the budget be what the arena was made for less ``size_bytes``; what is taken beyond it stays taken."""
        self.budget_bytes = self.limit_bytes = _whole(self._size_bytes - size_bytes)

    @property
    def used_bytes(self) -> int:
        return self._size_bytes - self._ranges.free_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The most that can be allocated at once."""
        return max(0, min(self._ranges.largest, self.limit_bytes - self.used_bytes))

    def allocate(self, size_bytes: int) -> Extent | None:
        """Take a range, or None when the limit or the free ranges do not allow it."""
        if self.used_bytes + _aligned(size_bytes) > self.limit_bytes:
            return None
        offset = self._ranges.take(_aligned(size_bytes))
        return None if offset is None else Extent(offset, size_bytes)

    def free(self, extent: Extent) -> None:
        """Return a range; views of it must not be used any more."""
        self._ranges.give_back(extent.offset, _aligned(extent.size_bytes))

    def limit(self, limit_bytes: int) -> None:
        """From now on let at most ``limit_bytes`` be taken, or the budget where that is less."""
        self.limit_bytes = min(limit_bytes, self.budget_bytes)

    def return_pages(self) -> None:
        """Give the pages of all free ranges back to the system; they are new again at their next use."""
        for offset, size in self._ranges:
            start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if start < end:
                self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def view(self, extent: Extent) -> memoryview:
        """Writable bytes of an allocated range."""
        return self._memory[extent.offset : extent.offset + extent.size_bytes]


def _whole(budget_bytes: int) -> int:
    """What of a budget can be divided into extents, at least one."""
    return max(budget_bytes // ALIGNMENT_BYTES, 1) * ALIGNMENT_BYTES


def _aligned(size_bytes: int) -> int:
    return -(-max(size_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
