"""An engine that ends leaves its cache to the next one on the same model."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from anchorline.cache.host import HostArena
from anchorline.cache.parked import ParkedCaches
from anchorline.cache.pins import PinEnd, PinKind
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.prompt import DEFAULT_TENANT, PinWish
from anchorline.config import EngineConfig
from anchorline.engine.caches import take_or_make_cache
from anchorline.engine.commands import ListPins
from anchorline.engine.engine import Engine, OpenStore
from anchorline.engine.loop import EngineLoop
from anchorline.engine.request import CallReport
from anchorline.errors import EngineFailure
from anchorline.llama.interface import DecodeStatus
from tests.cache.test_prefix_cache import save
from tests.engine.harness import make_prompt
from tests.engine.test_engine import IDS, BrokenRuntime, GatedRuntime, request
from tests.support.consumer import Recorder
from tests.support.fake_runtime import FakeRuntime, expected_reply
from tests.support.memory_store import Files, MemoryStore

CONFIG = EngineConfig(parallel=2, resident_idle=1, cache_ram_bytes=1 << 20)


class SecondDecodeGated(GatedRuntime):
    """Prefills a short prompt at once; then it waits."""

    def __init__(self) -> None:
        super().__init__()
        self._decoded = 0

    def decode(self) -> DecodeStatus:
        self._decoded += 1
        return super().decode() if self._decoded > 1 else FakeRuntime.decode(self)


class Garage:
    """Engines one after another on the same arena."""

    def __init__(self) -> None:
        self.parked = ParkedCaches(HostArena(CONFIG.cache_ram_bytes))

    def engine(
        self, model: str, runtime: FakeRuntime | None = None, *, identity: bytes = b"", store: OpenStore | None = None
    ) -> Engine:
        opened = partial(take_or_make_cache, self.parked, model, identity)
        engine = Engine(runtime or FakeRuntime(), CONFIG, clock=time.monotonic, open_cache=opened, open_store=store)
        engine.start()
        return engine

    def park(self, model: str, engine: Engine, *, identity: bytes = b"") -> PrefixCache:
        cache = engine.park(flush_seconds=0)
        assert cache is not None
        self.parked.park(model, identity, cache)
        return cache


def ask(engine: Engine, ids: list[int]) -> CallReport:
    recorder = Recorder()
    engine.submit(request(f"call {time.monotonic_ns()}", ids), recorder)
    recorder.wait()
    assert recorder.tokens[0] == expected_reply(ids, 4)
    assert recorder.report is not None
    return recorder.report


def test_the_next_engine_restores_what_the_last_one_computed() -> None:
    garage = Garage()
    first = garage.engine("a")
    ask(first, IDS)
    garage.park("a", first)
    other = garage.engine("b")
    assert ask(other, IDS).restored_tokens == 0, "another model's rows are none of its business"
    garage.park("b", other)
    again = garage.engine("a")
    report = ask(again, [*IDS, 90, 91])
    assert report.host_tokens == len(IDS)
    again.close()


def test_a_model_that_means_something_else_starts_anew() -> None:
    garage = Garage()
    first = garage.engine("a")
    ask(first, IDS)
    garage.park("a", first)
    changed = garage.engine("a", identity=b"changed")
    assert ask(changed, IDS).restored_tokens == 0
    changed.close()


def test_what_runs_is_ended_and_what_it_prefilled_is_kept() -> None:
    garage, runtime = Garage(), SecondDecodeGated()
    engine = garage.engine("a", runtime)
    recorder = Recorder()
    engine.submit(request("a", max_tokens=300), recorder)
    assert runtime.entered.wait(timeout=30)
    with ThreadPoolExecutor(1) as thread:
        parking = thread.submit(garage.park, "a", engine)
        runtime.gate.set()
        cache = parking.result()
    recorder.wait()
    assert isinstance(recorder.error, EngineFailure)
    prompt = make_prompt(IDS)
    assert cache.match(prompt, prompt.tokens).restorable == len(IDS)
    assert not any(node.leases for node in cache.tree)
    assert garage.parked.arena.used_bytes == cache.storage.arena.used_bytes
    while garage.parked.drop_next():
        pass
    assert garage.parked.arena.used_bytes == 0, "nothing is held that nobody can give up"


def test_a_failed_engine_leaves_nothing() -> None:
    garage = Garage()
    engine = garage.engine("a", BrokenRuntime())
    recorder = Recorder()
    engine.submit(request("a"), recorder)
    recorder.wait()
    assert engine.park(flush_seconds=0) is None
    assert garage.parked.arena.used_bytes == 0


class Fails:
    """A command that ends the engine, after some steps."""

    def __init__(self, steps: int = 0) -> None:
        self._steps = steps
        self.taken_bytes = 0

    def perform(self, loop: EngineLoop) -> None:
        loop.finish_saves()
        for _ in range(self._steps):
            loop.step()
        assert loop.cache is not None
        self.taken_bytes = loop.cache.arena.used_bytes
        raise RuntimeError("it fails")


def fail(engine: Engine, *, steps: int = 0) -> int:
    """Let the engine fail; what its cache had taken by then, in bytes."""
    command = Fails(steps)
    with pytest.raises(RuntimeError):
        engine.ask(command).result()
    return command.taken_bytes


class HangingStore(MemoryStore):
    """Does not come to an end when it is closed."""

    def close(self, timeout_seconds: float) -> None: ...


def test_a_failed_engine_leaves_nothing_of_what_was_being_written() -> None:
    garage, store = Garage(), MemoryStore(Files())
    engine = garage.engine("a", store=lambda: store)
    ask(engine, IDS)
    assert fail(engine) > 0
    assert store.jobs, "writes are pending"
    assert engine.park(flush_seconds=0) is None
    assert garage.parked.arena.used_bytes == 0


def test_a_failed_engine_leaves_nothing_of_what_was_being_read() -> None:
    files = Files()
    before_restart = Garage().engine("a", store=lambda: MemoryStore(files))
    ask(before_restart, IDS)
    before_restart.close(flush_seconds=1)
    garage, again = Garage(), MemoryStore(files)
    second = garage.engine("a", store=lambda: again)
    again.work()
    second.wait_until_indexed(30)
    second.submit(request("a", [*IDS, 90]), Recorder())
    assert fail(second, steps=1) > 0
    assert again.jobs, "reads are pending"
    assert second.park(flush_seconds=0) is None
    assert garage.parked.arena.used_bytes == 0


def test_what_a_disk_that_hangs_may_still_touch_stays_taken_when_the_engine_fails() -> None:
    garage, store = Garage(), HangingStore(Files())
    engine = garage.engine("a", store=lambda: store)
    ask(engine, IDS)
    fail(engine)
    assert engine.park(flush_seconds=0) is None
    assert garage.parked.arena.used_bytes > 0


def test_what_others_may_do_to_the_files_meanwhile_is_found_out_by_reading_them_again() -> None:
    files, garage = Files(), Garage()
    store = MemoryStore(files)
    first = garage.engine("a", store=lambda: store)
    ask(first, IDS)
    cache = first.park(flush_seconds=1)
    assert cache is not None
    assert files.kept
    assert first.stats().disk.store.written_records == len(files.kept), "figures are those of the very end"
    assert not any(node.stored for node in cache.tree), "another model may collect them"
    garage.parked.park("a", b"", cache)
    while garage.parked.drop_next():
        pass
    assert garage.parked.arena.used_bytes == 0, "nothing is held for writes that are done"
    again = MemoryStore(files)
    second = garage.engine("a", store=lambda: again)
    while again.work():
        pass
    second.wait_until_indexed(30)
    stats = second.fresh_stats().result()
    assert stats.disk.indexed
    assert stats.disk.records == len(files.kept)
    second.close()


@pytest.mark.parametrize("fork_bytes", [0, 1 << 18])
def test_pins_of_all_models_share_one_budget(fork_bytes: int) -> None:
    garage = Garage()
    first, recorder = garage.engine("a"), Recorder()
    first.submit(replace(request("a"), prompt=make_prompt(IDS, head=16, pin=True)), recorder)
    recorder.wait()
    pinned = garage.park("a", first).pins.pinned_bytes
    assert pinned > 0
    runtime = FakeRuntime()
    runtime.limits = replace(runtime.limits, fork_bytes=fork_bytes)
    other = garage.engine("b", runtime)
    stats = other.fresh_stats().result()
    assert stats.host_budget_bytes == CONFIG.cache_ram_bytes - fork_bytes
    assert stats.pin_budget_bytes == stats.host_budget_bytes // 2
    assert stats.parked_pinned_bytes == pinned
    listed = other.ask(ListPins(tenant=DEFAULT_TENANT)).result()
    assert (listed.pins, listed.pinned_bytes, listed.parked_bytes) == ((), 0, pinned)
    other.close()


def test_pins_whose_time_is_over_leave_the_budget_to_others() -> None:
    seconds = [0.0]
    parked = ParkedCaches(HostArena(CONFIG.cache_ram_bytes))

    def cache_of(model: str) -> PrefixCache:
        cache = take_or_make_cache(parked, model, b"", CONFIG, FakeRuntime(), lambda: seconds[-1])
        assert cache is not None
        return cache

    first = cache_of("a")
    save(first, replace(make_prompt(IDS), pin_wishes=(PinWish(position=len(IDS), ttl_seconds=300),)))
    parked.park("a", b"", first)
    second = cache_of("b")
    whole = second.pins.limit_bytes
    assert second.pins.room_bytes(PinKind.HEAD) == whole - parked.pinned_bytes < whole
    seconds.append(301)
    second.expire_pins()
    assert parked.pinned_bytes == 0
    engine = Engine(FakeRuntime(), CONFIG, clock=time.monotonic, open_cache=lambda *_: second)
    assert engine.stats().parked_pins_ended == {PinEnd.EXPIRED: 1}
    engine.close()
    assert second.pins.room_bytes(PinKind.HEAD) == whole
