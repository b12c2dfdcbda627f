"""Counters of the engine and its cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from anchorline.cache.classes import CallClass
from anchorline.cache.disk import DiskStats
from anchorline.cache.storage import CacheCounters
from anchorline.engine.sealing import SealCounters


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One consistent snapshot. Counters only grow, the rest are gauges; without a cache its fields are 0."""

    alive: bool
    running: int
    waiting: int
    held: int = 0
    """Of those waiting: held until another stream has prefilled what both share."""
    queue_limit: int
    resident_sequences: int
    resident_tokens: int
    context_tokens: int
    decode_calls: int
    decoded_tokens: int
    """Prefilled and generated, those of cancelled and failed calls too."""
    preemptions: int
    dropped_idle: Counter[str] = field(default_factory=Counter)
    """Finished sequences that left the pool, by reason (``DropReason``). A copy."""
    shortened_idle: int = 0
    """How often a finished sequence lost its end to make room."""
    awaited_returns: int = 0
    """How often a call waited for a conversation to come back, rather than take its cells."""
    cache_fault: str | None = None
    """Why the cache is off although it was asked for: what the start-up self-test found."""
    seals: SealCounters = field(default_factory=SealCounters)
    """A copy, never changed."""
    pending_saves: int = 0
    """Finished sequences whose rows are still to be written to the host tier."""
    host_budget_bytes: int = 0
    host_limit_bytes: int = 0
    """What the host tier may take at present: less than the budget while the machine's memory is short."""
    host_used_bytes: int = 0
    eviction: str = ""
    """The policy by which segments go."""
    host_segments: int = 0
    host_tokens_by_class: Mapping[CallClass, int] = field(default_factory=dict)
    """Tokens of those segments by the highest class of the calls that held them."""
    host_states: int = 0
    host_state_bytes: int = 0
    """Part of ``host_used_bytes``; the rest is rows."""
    pin_budget_bytes: int = 0
    pinned_bytes: int = 0
    parked_pinned_bytes: int = 0
    """What pins of models hold that are not loaded; within the same budget."""
    pins: int = 0
    pins_ended: Counter[str] = field(default_factory=Counter)
    """Pins that are gone, by reason (``PinEnd``). A copy."""
    parked_pins_ended: Counter[str] = field(default_factory=Counter)
    """The same of models that were not loaded then. A copy."""
    pins_refused: Counter[str] = field(default_factory=Counter)
    """Pins that were not made, by reason (``PinRefusal``). A copy."""
    cache: CacheCounters = field(default_factory=CacheCounters)
    """A copy, never changed."""

    disk: DiskStats = field(default_factory=DiskStats)
    """A copy, never changed."""

    @classmethod
    def of_none(cls) -> EngineStats:
        """Where no engine runs, and none is needed."""
        return cls(
            alive=True,
            running=0,
            waiting=0,
            queue_limit=0,
            resident_sequences=0,
            resident_tokens=0,
            context_tokens=0,
            decode_calls=0,
            decoded_tokens=0,
            preemptions=0,
        )

    @property
    def all_pins_ended(self) -> Counter[str]:
        return self.pins_ended + self.parked_pins_ended

    @property
    def host_tokens(self) -> int:
        """Tokens of the segments, each counted once however many histories share it."""
        return sum(self.host_tokens_by_class.values())
