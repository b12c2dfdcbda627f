"""The engine's counters and gauges, read from EngineStats when Prometheus asks."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from anchorline.cache.classes import CallClass
from anchorline.engine.stats import EngineStats

StatsSource = Callable[[], EngineStats]


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    field: str
    """Its path in EngineStats."""
    help: str


_GAUGES = (
    _Declared("up", "alive", "1 while the engine serves requests."),
    _Declared("cache_faulty", "cache_fault", "1 when the cache is off because the start-up self-test failed."),
    _Declared("running_streams", "running", "Streams being prefilled or generated."),
    _Declared("waiting_requests", "waiting", "Requests in the queue."),
    _Declared("held_requests", "held", "Of those, requests that wait while another prefills the same prefix."),
    _Declared("queue_limit", "queue_limit", "Requests the queue holds (--queue)."),
    _Declared("resident_sequences", "resident_sequences", "Sequences with cells in the live KV cache."),
    _Declared("resident_tokens", "resident_tokens", "Cells in use in the live KV cache."),
    _Declared("context_tokens", "context_tokens", "Cells of the live KV cache (--ctx)."),
    _Declared("sealing_pays", "seals.pays", "1 while sealing saves calls more time than it costs (docs/sealing.md)."),
    _Declared("pending_saves", "pending_saves", "Finished sequences still to be saved."),
    _Declared("host_budget_bytes", "host_budget_bytes", "Budget of the host tier (--cache-ram)."),
    _Declared("host_limit_bytes", "host_limit_bytes", "What the host tier may take while memory is as short as it is."),
    _Declared("host_used_bytes", "host_used_bytes", "Bytes of segments in the host tier."),
    _Declared("host_segments", "host_segments", "Segments in the host tier."),
    _Declared("host_tokens", "host_tokens", "Tokens of the segments in the host tier, shared ones counted once."),
    _Declared("host_states", "host_states", "States of stateful models in the host tier."),
    _Declared("host_state_bytes", "host_state_bytes", "Bytes of states; the rest of the host tier is rows."),
    _Declared("disk_used_bytes", "disk.used_bytes", "Bytes of all files of the disk tier, those of other models too."),
    _Declared("disk_limit_bytes", "disk.limit_bytes", "What they may take (--cache-disk-size)."),
    _Declared("disk_records", "disk.records", "Rows and states on disk that can be restored."),
    _Declared("disk_pending_writes", "disk.pending_writes", "Rows and states that wait to be written to disk."),
    _Declared("disk_indexed", "disk.indexed", "1 once all that was on disk at the start is known."),
    _Declared("pin_budget_bytes", "pin_budget_bytes", "Bytes that pins may hold (--pin-budget)."),
    _Declared("pinned_bytes", "pinned_bytes", "Bytes of pinned segments."),
    _Declared("parked_pinned_bytes", "parked_pinned_bytes", "Bytes pinned of models that are not loaded."),
    _Declared("pins", "pins", "Pins held."),
)
_COUNTERS = (
    _Declared("decode_calls", "decode_calls", "Batches decoded."),
    _Declared("decoded_tokens", "decoded_tokens", "Tokens in those batches, also of calls that did not finish."),
    _Declared("preemptions", "preemptions", "Streams put back into the queue for want of cells."),
    _Declared("shortened_idle", "shortened_idle", "Times that idle sequences gave up their last cells for others."),
    _Declared("awaited_returns", "awaited_returns", "Times that a call waited for a conversation to come back."),
    _Declared("seals", "seals.completed", "Turns sealed: what the next request begins with was prefilled ahead."),
    _Declared("seals_interrupted", "seals.gave_way", "Turns of which a part was sealed when a request came."),
    _Declared("sealed_tokens", "seals.prefilled_tokens", "Tokens prefilled ahead of need."),
    _Declared("sealed_tokens_used", "seals.used_tokens", "Of these, tokens that a later call restored."),
    _Declared("sealing_delay_seconds", "seals.delay_seconds", "Time that calls waited for sealing to give way."),
    _Declared("restored_bytes", "cache.restored_bytes", "Bytes put back into the live KV cache."),
    _Declared("exported_bytes", "cache.exported_bytes", "Bytes exported from the live KV cache."),
    _Declared("saved_segments", "cache.saved_segments", "Segments saved."),
    _Declared("saved_states", "cache.saved_states", "States of stateful models saved."),
    _Declared("merged_segments", "cache.merged_segments", "Segments exported again with their neighbours, as one."),
    _Declared("merged_bytes", "cache.merged_bytes", "Bytes of such exports."),
    _Declared("evictions", "cache.evictions", "Segments evicted from the host tier."),
    _Declared("evicted_bytes", "cache.evicted_bytes", "Bytes evicted from the host tier."),
    _Declared("disk_loads", "disk.loads", "Times that calls waited for the disk tier."),
    _Declared("disk_refused_loads", "disk.refused_loads", "Times that the host tier had no room for what is on disk."),
    _Declared("disk_given_up_loads", "disk.given_up_loads", "Times that reading from disk took too long."),
    _Declared("disk_written_records", "disk.store.written_records", "Rows and states written to disk."),
    _Declared("disk_written_bytes", "disk.store.written_bytes", "Bytes written to disk."),
    _Declared("disk_read_records", "disk.store.read_records", "Rows and states read from disk."),
    _Declared("disk_read_bytes", "disk.store.read_bytes", "Bytes read from disk."),
    _Declared("disk_collected_files", "disk.store.collected_files", "Files deleted to keep to --cache-disk-size."),
    _Declared("disk_collected_bytes", "disk.store.collected_bytes", "Bytes of such files."),
    _Declared("restore_failures", "cache.restore_failures", "Restores refused by llama.cpp and recomputed."),
    _Declared("pressure_episodes", "cache.pressure_episodes", "Times that the machine's memory ran short."),
    _Declared("pressure_bytes", "cache.pressure_bytes", "Bytes given up for want of the machine's memory."),
)
_COUNTERS_BY_REASON = (
    _Declared("dropped_idle", "dropped_idle", "Idle sequences dropped from the live KV cache."),
    _Declared("unsaved_cuts", "cache.unsaved", "Cuts that were not saved, by reason."),
    _Declared("unmerged_chains", "cache.unmerged", "Failed attempts to shorten a chain, by reason."),
    _Declared("disk_unwritten", "disk.store.unwritten", "Rows and states not written to disk, by reason."),
    _Declared("disk_faults", "disk.store.faults", "Files that could not be used or written, by reason."),
    _Declared("disk_unattached", "disk.unattached", "Files that fit no history, by reason."),
    _Declared("pins_ended", "all_pins_ended", "Pins that are gone, by reason."),
    _Declared("pins_refused", "pins_refused", "Pins that were not made, by reason."),
)

_Counts: TypeAlias = Counter[tuple[str, str]]
"""By name and reason, which is empty where a counter has none."""


class EngineCounts:
    """What engines have counted that run one after another. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted_before: _Counts = Counter()
        """By earlier engines, less what the latest one, whose cache may not be new, has begun with."""
        self._latest: StatsSource = EngineStats.of_none

    def begin(self, stats: StatsSource) -> None:
        """The next engine is about to start, and the one before has ended."""
        with self._lock:
            self._counted_before = self._total()
            self._counted_before.subtract(_counts_of(stats()))
            self._latest = stats

    def total(self) -> _Counts:
        """The sums as of now."""
        with self._lock:
            return self._total()

    def _total(self) -> _Counts:
        total = self._counted_before.copy()
        total.update(_counts_of(self._latest()))
        return total


class EngineCollector(Collector):
    """Gauges of one consistent snapshot per scrape, and what engines have counted; unregistered with its registry."""

    def __init__(self, stats: StatsSource, counts: EngineCounts) -> None:
        self._stats = stats
        self._counts = counts

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: registration must not ask an engine that is still starting."""
        return iter(())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        stats = self._stats()
        for gauge in _GAUGES:
            yield GaugeMetricFamily(
                f"anchorline_{gauge.name}", gauge.help, value=_number(attrgetter(gauge.field)(stats))
            )
        yield _by_class("host_class_tokens", "Tokens in the host tier, by class of call.", stats.host_tokens_by_class)
        total = self._counts.total()
        for counter in _COUNTERS:
            value = float(total[counter.name, ""])
            yield CounterMetricFamily(f"anchorline_{counter.name}", counter.help, value=value)
        for counter in _COUNTERS_BY_REASON:
            counts = {reason: count for (name, reason), count in total.items() if name == counter.name}
            yield _by_reason(counter.name, counter.help, counts)


def _counts_of(stats: EngineStats) -> _Counts:
    counts: _Counts = Counter({(each.name, ""): attrgetter(each.field)(stats) for each in _COUNTERS})
    for each in _COUNTERS_BY_REASON:
        counts.update({(each.name, reason): count for reason, count in attrgetter(each.field)(stats).items()})
    return counts


def _by_class(name: str, help: str, tokens: Mapping[CallClass, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"anchorline_{name}", help, labels=["call_class"])
    for call_class, count in sorted(tokens.items()):
        family.add_metric([call_class.label], float(count))
    return family


def _by_reason(name: str, help: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"anchorline_{name}", help, labels=["reason"])
    for reason, count in sorted(counts.items()):
        family.add_metric([reason], float(count))
    return family


def _number(value: float | str | None) -> float:
    """A gauge's value; a text counts as 1 where there is one."""
    return float(value is not None) if value is None or isinstance(value, str) else float(value)
