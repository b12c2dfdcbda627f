"""The policy of short memory, and what the cache gives up for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from anchorline.cache.pins import PinEnd
from anchorline.cache.pressure import (
    COMFORT,
    RESERVE_BYTES_MAX,
    growth_bytes,
    is_comfortable,
    is_short,
    reserve_bytes,
    shortage_bytes,
)
from anchorline.cache.segment import Absence
from anchorline.machine import GIB, Memory
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, export, make_cache, save

memories = st.integers(1 << 20, 1 << 42).flatmap(lambda total: st.builds(Memory, st.just(total), st.integers(0, total)))


@given(memories)
def test_giving_back_ends_the_episode_and_growing_never_begins_one(memory: Memory) -> None:
    assert not (is_short(memory) and is_comfortable(memory))
    assert (shortage_bytes(memory) > 0) == is_short(memory)
    relieved = Memory(memory.total_bytes, memory.available_bytes + shortage_bytes(memory))
    assert is_comfortable(relieved) or not is_short(memory)
    grown = Memory(memory.total_bytes, memory.available_bytes - growth_bytes(memory))
    assert is_short(grown) == is_short(memory)
    assert growth_bytes(memory) == 0 or not is_short(memory)


def test_the_reserve_is_a_twentieth_and_at_most_a_gibibyte() -> None:
    assert reserve_bytes(Memory(10 * GIB, 0)) == GIB // 2
    assert reserve_bytes(Memory(512 * GIB, 0)) == RESERVE_BYTES_MAX
    assert shortage_bytes(Memory(10 * GIB, GIB // 4)) == COMFORT * GIB // 2 - GIB // 4


def test_the_least_valuable_go_first_and_pinned_heads_last() -> None:
    cache = make_cache(4000)
    save(cache, conversation(1, 400, 1000))
    for name in range(2, 5):
        save(cache, conversation(name, 0, 500, pin=False))
    cache.give_back(1000 * BYTES_PER_TOKEN)
    assert cache.match(conversation(1, 400, 1000), conversation(1, 400, 1000).tokens).restorable >= 400
    assert cache.counters.pressure_bytes >= 1000 * BYTES_PER_TOKEN
    assert not cache.pins.ended
    cache.give_back(1 << 40)
    assert cache.arena.used_bytes == 0
    assert cache.pins.ended == {PinEnd.GAVE_WAY: 1}


def test_leased_segments_stay() -> None:
    cache = make_cache(4000, longest_piece=600)
    prompt = conversation(1, 0, 600, pin=False)
    saving = cache.save(prompt, prompt.tokens, export)
    next(saving)
    cache.give_back(1 << 40)
    assert cache.arena.used_bytes == 600 * BYTES_PER_TOKEN
    assert list(saving) == []


def test_a_limit_holds_for_what_is_saved_next() -> None:
    cache = make_cache(4000, longest_piece=800)
    save(cache, conversation(1, 0, 600, pin=False))
    cache.arena.limit(700 * BYTES_PER_TOKEN)
    save(cache, conversation(2, 0, 650, pin=False))
    assert cache.arena.used_bytes == 650 * BYTES_PER_TOKEN
    save(cache, conversation(3, 0, 800, pin=False))
    assert cache.arena.used_bytes == 650 * BYTES_PER_TOKEN
    assert cache.counters.unsaved == {Absence.MEMORY_SHORT: 1}
    cache.arena.limit(1 << 40)
    assert cache.arena.limit_bytes == cache.arena.budget_bytes
    save(cache, conversation(3, 0, 800, pin=False))
    assert cache.arena.used_bytes == (650 + 800) * BYTES_PER_TOKEN


GIVE_BACK = """
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, make_cache

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def export(start, end, allocate):
    memory = allocate((end - start) * BYTES_PER_TOKEN)
    memory[:] = bytes([7]) * memory.nbytes
    return memory

MIB = 1 << 20
cache = make_cache(128 * MIB // BYTES_PER_TOKEN, longest_piece=20 * MIB // BYTES_PER_TOKEN)
for name in range(4):
    prompt = conversation(name, 0, 20 * MIB // BYTES_PER_TOKEN, pin=False)
    cache.note_call(prompt)
    for _ in cache.save(prompt, prompt.tokens, export):
        pass
full = resident()
cache.give_back(30 * MIB)
assert cache.arena.used_bytes == 40 * MIB
assert full - resident() > 36 * MIB, (full - resident()) / MIB
"""


def test_what_is_given_back_leaves_the_process() -> None:
    folder = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", GIVE_BACK], check=True, env=environment)
