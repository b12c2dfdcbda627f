"""What the HTTP edge and the engine's reports count."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from anchorline.engine.request import CallReport
from anchorline.metrics.engine import EngineCollector, EngineCounts, StatsSource

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """One server's metrics in a registry of their own. Thread-safe, as prometheus-client is."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engines = EngineCounts()
        self.requests = self._counter("requests", "HTTP requests by endpoint and status.", "endpoint", "status")
        self.tokens = self._counter(
            "tokens", "Tokens by source: resident and host were restored, prefilled and generated computed.", "source"
        )
        self.plans = self._counter("plans", "Calls by where their prefix came from.", "kind")
        self.calls = self._counter("calls", "Calls by what the cache took them for.", "call_class")
        self.hits = self._counter("hits", "Calls that restored tokens, by tier; both tiers may serve one call.", "tier")
        self.misses = self._counter("misses", "Calls that restored less than was once seen, by reason.", "reason")
        self.missed_tokens = self._counter("missed_tokens", "Tokens seen before but prefilled again.", "reason")
        self.cancelled = self._counter("cancelled", "Calls whose client went away before the end.")
        self.rewritten = self._counter("rewritten_calls", "Calls that a rewrite has changed, by rewrite.", "rewrite")
        self.floated_tokens = self._counter("floated_tokens", "Tokens said behind a user message by --float-volatile.")
        self.queue_seconds = self._seconds("queue", "Time a call waited for its model and a stream.", _LONG_SECONDS)
        self.switch_seconds = self._seconds("switch", "Time a call waited for its model to be loaded.", _LONG_SECONDS)
        self.sharing_seconds = self._seconds(
            "sharing", "Time a call was held while another prefilled the same prefix.", _LONG_SECONDS
        )
        self.load_seconds = self._seconds(
            "load", "Time a call was held while its prefix was read from disk; not of loading models.", _LONG_SECONDS
        )
        self.restore_seconds = self._seconds("restore", "Time a call took to restore its prefix.", _SHORT_SECONDS)
        self.prefill_seconds = self._seconds("prefill", "Time a call took to prefill its delta.", _LONG_SECONDS)
        self.decode_seconds = self._seconds("decode", "Time a call took to generate its reply.", _LONG_SECONDS)
        self.ttft_seconds = self._seconds("ttft", "Time from receipt to the first token.", _LONG_SECONDS)
        self.model_loads = self._counter("model_loads", "Times that one of several models was loaded.", "model")
        self.model_load_seconds = self._seconds("model_load", "Time to load one of several models.", _LONG_SECONDS)
        self.model_loaded = Gauge(
            "anchorline_model_loaded", "1 for the model of several that is loaded.", ["model"], registry=self.registry
        )

    def watch_engine(self, stats: StatsSource) -> None:
        """Read the gauges of the engine that runs through ``stats`` at every scrape."""
        self.registry.register(EngineCollector(stats, self._engines))

    def count_engine(self, stats: StatsSource) -> None:
        """From now on also count what an engine does that is about to start; the one before has ended."""
        self._engines.begin(stats)

    def count_request(self, *, endpoint: str, status: int) -> None:
        self.requests.labels(endpoint, str(status)).inc()

    def count_call(self, report: CallReport) -> None:
        """Count one finished call."""
        self.count_work(report)
        self.queue_seconds.observe(report.queue_seconds)
        if report.switch_seconds:
            self.switch_seconds.observe(report.switch_seconds)
        if report.sharing_seconds:
            self.sharing_seconds.observe(report.sharing_seconds)
        if report.load_seconds:
            self.load_seconds.observe(report.load_seconds)
        self.restore_seconds.observe(report.restore_seconds)
        self.prefill_seconds.observe(report.prefill_seconds)
        self.decode_seconds.observe(report.decode_seconds)
        if report.ttft_seconds is not None:
            self.ttft_seconds.observe(report.ttft_seconds)

    def count_work(self, report: CallReport) -> None:
        """Count what one call restored, missed and computed; all there is to count of one that ended early."""
        self.tokens.labels("resident").inc(report.resident_tokens)
        self.tokens.labels("host").inc(report.host_tokens - report.disk_tokens)
        self.tokens.labels("disk").inc(report.disk_tokens)
        self.tokens.labels("prefilled").inc(report.prefilled_tokens)
        self.tokens.labels("generated").inc(report.generated_tokens)
        self.plans.labels(report.plan.value).inc()
        self.calls.labels(report.call_class.label).inc()
        for tier, tokens in report.tiers.items():
            self.hits.labels(tier).inc(bool(tokens))
        if report.miss is not None:
            self.misses.labels(report.miss.value).inc()
            self.missed_tokens.labels(report.miss.value).inc(max(0, report.seen_tokens - report.restored_tokens))

    def count_model_load(self, name: str, *, seconds: float) -> None:
        """Count that one of several models was loaded; it is until ``model_loaded`` says otherwise."""
        self.model_loads.labels(name).inc()
        self.model_load_seconds.observe(seconds)
        self.model_loaded.labels(name).set(1)

    def count_rewriting(self, names: Sequence[str], *, floated_tokens: int) -> None:
        """Count what was rendered of one call otherwise than it was sent; ``names`` are those of the rewrites."""
        for name in names:
            self.rewritten.labels(name).inc()
        self.floated_tokens.inc(floated_tokens)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"anchorline_{name}", help, labels, registry=self.registry)

    def _seconds(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"anchorline_{name}_seconds", help, registry=self.registry, buckets=buckets)
