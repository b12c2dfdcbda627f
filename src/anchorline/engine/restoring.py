"""Putting segments back into a live sequence; whatever is refused costs a prefill, never an answer."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.cache.prefix_cache import PrefixCache, RestoreSpan
from anchorline.cache.tree import Match
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Clock
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime


@dataclass(slots=True, kw_only=True)
class Restorer:
    """Imports chains of segments. ``live.length`` always says what the sequence holds."""

    runtime: Runtime
    pool: SequencePool
    meter: SpeedMeter
    clock: Clock

    def restore(self, cache: PrefixCache, live: LiveSequence, match: Match, end: int) -> bool:
        """Import what ``match`` has of [live.length, end); False when some of it was refused.

        With plain attention the sequence then holds what was imported before. A stateful one is
        completed by the state at ``end``, or emptied.
        """
        cache.touch(match, end)
        started = self.clock()
        imported = imported_bytes = 0
        complete = True
        for span in cache.spans(match, live.length, end):
            if not self._import_span(cache, live, span):
                complete = False
                break
            imported += 1
            imported_bytes += span.rows.nbytes
        if self.runtime.capabilities.has_state:
            complete = complete and self._import_state(cache, live, match, end)
            if not complete:
                self.pool.empty(live)
        cache.counters.restored_bytes += imported_bytes
        self.meter.restored(imported_bytes, imported, self.clock() - started)
        return complete

    def _import_span(self, cache: PrefixCache, live: LiveSequence, span: RestoreSpan) -> bool:
        """Import one span; False when it was refused. Bad rows are forgotten, bad cells emptied."""
        had_room = self.pool.free_cells >= span.rows.end - span.rows.start
        try:
            if self.runtime.import_rows(live.id, span.rows.memory, span.start, span.end):
                live.length = span.end
                return True
        except BackendFailure:
            # What the sequence holds now is unknown: it starts again.
            self.pool.empty(live)
        if had_room:
            cache.reject(span.segment)
        return False

    def _import_state(self, cache: PrefixCache, live: LiveSequence, match: Match, end: int) -> bool:
        """Complete imported rows with the state at ``end``; a state that is refused is forgotten."""
        segment = cache.segment_at(match, end)
        assert segment.state is not None
        try:
            if self.runtime.import_state(live.id, segment.state.memory, end):
                return True
        except BackendFailure:
            pass  # the caller empties the sequence
        cache.reject_state(segment)
        return False
