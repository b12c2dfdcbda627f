"""When the machine runs short of RAM: what the cache gives back, and how far it may grow. Pure.

    available   0 ──────── reserve ──────────── comfort ─────────── total
                 give back │ go on, but not past │ grow up to
                 up to     │ the reserve         │ the budget
                 comfort   │                     │

The reserve is what everything else can take between two looks before the kernel has to kill.
"""

from __future__ import annotations

from anchorline.machine import Memory

RESERVE_SHARE = 0.05
RESERVE_BYTES_MAX = 1 << 30
COMFORT = 2
"""In reserves: an episode of pressure lasts until so much is available."""


def reserve_bytes(memory: Memory) -> int:
    """RAM that the cache leaves to others."""
    return min(int(memory.total_bytes * RESERVE_SHARE), RESERVE_BYTES_MAX)


def is_short(memory: Memory) -> bool:
    """Whether the cache has to give back."""
    return memory.available_bytes < reserve_bytes(memory)


def is_comfortable(memory: Memory) -> bool:
    """Whether an episode of pressure is over."""
    return memory.available_bytes >= COMFORT * reserve_bytes(memory)


def shortage_bytes(memory: Memory) -> int:
    """What the cache gives back; 0 unless memory is short."""
    return COMFORT * reserve_bytes(memory) - memory.available_bytes if is_short(memory) else 0


def growth_bytes(memory: Memory) -> int:
    """What the cache may take until memory is looked at again."""
    return max(0, memory.available_bytes - reserve_bytes(memory))
