"""The arena: ranges never overlap, never exceed the budget, and merge again."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.host import ALIGNMENT_BYTES, Extent, HostArena

BUDGET = 64 * 1024


@given(st.lists(st.one_of(st.integers(1, 9000), st.integers(-20, -1)), max_size=80))
def test_ranges_are_disjoint_and_add_up(script: list[int]) -> None:
    """Positive numbers allocate so many bytes, negative ones free the n-th oldest."""
    arena = HostArena(BUDGET)
    held: list[Extent] = []
    for step in script:
        if step > 0:
            extent = arena.allocate(step)
            if extent is not None:
                arena.view(extent)[:] = bytes([len(held) % 251]) * step
                held.append(extent)
        elif held:
            arena.free(held.pop(-step % len(held)))
        spans = sorted((e.offset, e.offset + e.size_bytes) for e in held)
        assert all(low_end <= high for (_, low_end), (high, _) in itertools.pairwise(spans))
        assert arena.used_bytes <= BUDGET
        assert arena.used_bytes >= sum(e.size_bytes for e in held)
    for extent in held:
        arena.free(extent)
    assert arena.used_bytes == 0
    whole = arena.allocate(BUDGET)
    assert whole is not None, "free neighbours must merge again"


def test_nothing_is_allocated_past_the_budget() -> None:
    arena = HostArena(4 * ALIGNMENT_BYTES)
    assert arena.allocate(5 * ALIGNMENT_BYTES) is None
    assert arena.allocate(3 * ALIGNMENT_BYTES + 1) is not None
    assert arena.allocate(1) is None


def test_used_pages_are_taken_again_first() -> None:
    arena = HostArena(BUDGET)
    first = arena.allocate(1000)
    second = arena.allocate(1000)
    assert first is not None
    assert second is not None
    arena.free(first)
    assert arena.allocate(500) == Extent(first.offset, 500)


def test_a_limit_below_the_budget_holds() -> None:
    arena = HostArena(BUDGET)
    arena.limit(1000)
    assert arena.allocate(1001) is None
    assert arena.allocate(900) is not None
    assert arena.allocate(200) is None
    arena.limit(2 * BUDGET)
    assert arena.limit_bytes == BUDGET
    assert arena.allocate(200) is not None


RETURN_PAGES = """
import sys
from anchorline.cache.host import HostArena

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

arena = HostArena(96 << 20)
before = resident()
kept = arena.allocate(1 << 20)
large = arena.allocate(64 << 20)
tail = arena.allocate(1 << 20)
for extent in (kept, large, tail):
    arena.view(extent)[:] = bytes([7]) * extent.size_bytes
arena.free(large)
full = resident()
arena.return_pages()
assert full - before > 60 << 20, (full, before)
assert resident() - before < 16 << 20, (resident(), before)
assert bytes(arena.view(kept)) == bytes(arena.view(tail)) == bytes([7]) * (1 << 20)
assert arena.allocate(60 << 20).offset == large.offset
"""

TOO_LARGE = """
import resource
from anchorline.cache.host import HostArena
from anchorline.errors import ConfigError

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    HostArena(4 << 30)
except ConfigError as error:
    assert str(error).startswith("--cache-ram: 4294967296 bytes cannot be reserved"), error
else:
    raise AssertionError("the limit on address space did nothing")
"""


@pytest.mark.parametrize("script", [RETURN_PAGES, TOO_LARGE])
def test_what_the_system_sees_of_it(script: str) -> None:
    """In a process of its own, whose memory nothing else changes."""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_set_aside_cannot_be_taken_and_comes_back() -> None:
    arena = HostArena(BUDGET)
    held = arena.allocate(BUDGET // 2)
    arena.set_aside(BUDGET * 3 // 4)
    assert (arena.budget_bytes, arena.limit_bytes) == (BUDGET // 4, BUDGET // 4)
    assert arena.allocate(1) is None, "more is taken already"
    assert held is not None
    arena.free(held)
    assert arena.allocate(BUDGET // 2) is None
    arena.set_aside(0)
    assert arena.allocate(BUDGET) is not None
