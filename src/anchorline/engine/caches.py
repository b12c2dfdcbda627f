"""Which cache an engine works with: a new one, one that a model left, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from anchorline.cache.host import HostArena
from anchorline.cache.parked import ParkedCaches
from anchorline.cache.pins import NO_PINS, OtherPins
from anchorline.cache.policy import EVICTION
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.storage import GiveUp, nothing_parked
from anchorline.config import EngineConfig
from anchorline.engine.selftest import self_test
from anchorline.engine.stream import Clock
from anchorline.llama.interface import Runtime

log = logging.getLogger("anchorline.engine")

OpenCache: TypeAlias = Callable[[EngineConfig, Runtime, Clock], PrefixCache | None]
"""The cache of an engine over this runtime, which the self-test has passed."""


def make_cache(config: EngineConfig, runtime: Runtime, clock: Clock) -> PrefixCache | None:
    """The cache that ``config`` asks for, or None when it is off.

    What a fork copies through comes out of the same budget. Raises ConfigError when the system cannot reserve it.
    """
    if not config.cache:
        return None
    return _new_cache(config, runtime, clock, HostArena(config.cache_ram_bytes - runtime.limits.fork_bytes))


def take_or_make_cache(
    parked: ParkedCaches,
    model: str,
    identity: bytes,
    config: EngineConfig,
    runtime: Runtime,
    clock: Clock,
) -> PrefixCache | None:
    """The cache that ``model`` left in ``parked``, if its bytes mean what ``identity`` stands for; else a new one.

    None when it is off. All share one arena and one pin budget.
    """
    if not config.cache:
        return None
    parked.arena.set_aside(runtime.limits.fork_bytes)
    cache = parked.take(model, identity)
    if cache is None:
        cache = _new_cache(config, runtime, clock, parked.arena, drop_parked=parked.drop_next, other_pins=parked)
    cache.pins.limit_bytes = _pin_budget_bytes(config, parked.arena)
    return cache


def _new_cache(
    config: EngineConfig,
    runtime: Runtime,
    clock: Clock,
    arena: HostArena,
    *,
    drop_parked: GiveUp = nothing_parked,
    other_pins: OtherPins = NO_PINS,
) -> PrefixCache:
    limits = runtime.limits
    return PrefixCache(
        runtime.capabilities,
        arena=arena,
        pin_budget_bytes=_pin_budget_bytes(config, arena),
        max_pins=config.max_pins,
        exact=config.exact,
        batch_tokens=limits.batch_tokens,
        bytes_per_token=limits.bytes_per_token,
        keep_value=EVICTION[config.eviction],
        clock=clock,
        drop_parked=drop_parked,
        other_pins=other_pins,
    )


def _pin_budget_bytes(config: EngineConfig, arena: HostArena) -> int:
    budget_bytes = arena.budget_bytes // 2 if config.pin_budget_bytes is None else config.pin_budget_bytes
    return min(budget_bytes, arena.budget_bytes)


def check_cache(runtime: Runtime) -> str | None:
    """Test restores on the empty runtime; None when they can be trusted, else why the cache must stay off.

    When segments fail the runtime falls back to keeping whole sequences, and is tested again.
    """
    fault = self_test(runtime)
    if fault is None:
        return None
    log.error("the self-test failed: %s; whole sequences are kept instead of segments", fault)
    runtime.keep_whole_sequences()
    fault = self_test(runtime)
    if fault is not None:
        log.error("the cache is off, as the self-test failed with whole sequences too: %s", fault)
    return fault
