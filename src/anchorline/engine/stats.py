"""Counters of the engine and its cache, read as one consistent snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot; counters only grow, the rest are gauges."""

    alive: bool
    running: int
    waiting: int
    queue_limit: int
    resident_sequences: int
    resident_tokens: int
    context_tokens: int
    decode_calls: int
    preemptions: int
    host_budget_bytes: int
    host_used_bytes: int
    host_segments: int
    pinned_bytes: int
    pins: int
    restored_bytes: int
    exported_bytes: int
    saved_segments: int
    evictions: int
    evicted_bytes: int
    unsaved_by_reason: Mapping[str, int]
    restore_failures: int
    pins_released: int
