"""The cache yields when the machine's memory runs short, and grows again afterwards."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from anchorline.cache.prefix_cache import PrefixCache
from anchorline.config import EngineConfig
from anchorline.engine.engine import Engine
from anchorline.engine.memory import CHECK_BYTES, MemoryWatch
from anchorline.machine import Memory
from tests.cache.test_prefix_cache import BYTES_PER_TOKEN, conversation, make_cache, save
from tests.engine.test_engine import request
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime

TOTAL = 1000 * BYTES_PER_TOKEN
RESERVE = 50 * BYTES_PER_TOKEN


class Machine:
    """``available`` tokens' worth of memory when the cache holds nothing; counts how often it is read."""

    def __init__(self, cache: PrefixCache, available: int) -> None:
        self.cache = cache
        self.available = available
        self.seconds = 0.0
        self.reads = 0

    def read(self) -> Memory:
        self.reads += 1
        return Memory(TOTAL, max(0, self.available * BYTES_PER_TOKEN - self.cache.arena.used_bytes))

    def watch(self) -> MemoryWatch:
        return MemoryWatch(self.cache, self.read, lambda: self.seconds)


@pytest.fixture
def machine() -> Machine:
    """A cache of 500 tokens that may become 2000 on a machine with room for 1000."""
    cache = make_cache(2000)
    save(cache, conversation(1, 0, 300, pin=False))
    save(cache, conversation(2, 0, 200, pin=False))
    return Machine(cache, 1000)


def test_the_cache_never_grows_into_the_reserve(machine: Machine) -> None:
    watch = machine.watch()
    watch.check()
    assert machine.cache.arena.limit_bytes == TOTAL - RESERVE
    for name in range(3, 9):
        save(machine.cache, conversation(name, 0, 300, pin=False))
        machine.seconds += 1
        watch.check()
        assert machine.read().available_bytes >= RESERVE
    assert not watch.in_episode
    assert machine.cache.counters.evictions > 0


def test_short_memory_takes_no_more_than_it_needs(machine: Machine) -> None:
    machine.available, watch = 520, machine.watch()
    watch.check()
    assert watch.in_episode
    left = machine.cache.arena.used_bytes // BYTES_PER_TOKEN
    assert left in (200, 300)
    assert machine.cache.counters.pressure_bytes == (500 - left) * BYTES_PER_TOKEN
    assert machine.cache.arena.limit_bytes == machine.cache.arena.used_bytes + machine.read().available_bytes - RESERVE


def test_an_episode_is_said_once_and_ends(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "anchorline.engine")
    cache, watch = machine.cache, machine.watch()
    for available, levels in ((0, ["WARNING"]), (5000, ["WARNING", "INFO"]), (0, ["WARNING", "INFO", "WARNING"])):
        machine.available = available
        for _ in range(5):
            machine.seconds += 1
            watch.check()
        assert watch.in_episode == (available == 0)
        assert cache.arena.limit_bytes == (cache.arena.budget_bytes if available else 0)
        assert [record.levelname for record in caplog.records] == levels
    assert cache.arena.used_bytes == 0
    assert cache.counters.pressure_episodes == 2
    assert cache.counters.pressure_bytes == 500 * BYTES_PER_TOKEN


def test_memory_is_looked_at_once_a_second_or_after_much_was_exported(machine: Machine) -> None:
    watch = machine.watch()
    for _ in range(10):
        machine.seconds += 0.25
        watch.check()
    assert machine.reads == 3
    machine.cache.counters.exported_bytes += CHECK_BYTES
    watch.check()
    assert machine.reads == 4


def test_an_unknown_memory_leaves_the_budget_alone(machine: Machine) -> None:
    MemoryWatch(machine.cache, lambda: None, lambda: 0.0).check()
    assert machine.cache.arena.limit_bytes == machine.cache.arena.budget_bytes


def test_an_engine_that_rests_still_yields() -> None:
    memory, looked = [Memory(1 << 30, 1 << 30)], threading.Event()

    def read() -> Memory:
        if memory[0].available_bytes == 0:
            looked.set()
        return memory[0]

    engine = Engine(FakeRuntime(), EngineConfig(parallel=2), clock=time.monotonic, read_memory=read)
    engine.start()
    try:
        engine.submit(request("a"), recorder := Recorder())
        assert recorder.wait().error is None
        memory[0] = Memory(1 << 30, 0)
        assert looked.wait(timeout=60)
        engine.submit(request("b", [7, 8, 9]), recorder := Recorder())
        assert recorder.wait().error is None
        stats = engine.stats()
        assert stats.cache.pressure_episodes == 1
        assert stats.host_limit_bytes < stats.host_budget_bytes
        assert stats.cache.unsaved["memory_short"] > 0 or stats.cache.pressure_bytes > 0
    finally:
        engine.close()
