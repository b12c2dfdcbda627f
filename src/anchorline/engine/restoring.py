"""Putting segments back into a live sequence; whatever is refused costs a prefill, never an answer."""

from __future__ import annotations

from dataclasses import dataclass

from anchorline.cache.chains import RestoreSpan, restore_spans, segment_at
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.tree import Match
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.request import MissReason
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

    def restore(self, cache: PrefixCache, live: LiveSequence, match: Match, end: int) -> MissReason | None:
        """Import what ``match`` has of [live.length, end); the reason when not all of it came back.

        With plain attention the sequence then holds what was imported before. A stateful one is
        completed by the state at ``end``, or emptied.
        """
        started = self.clock()
        imported = imported_bytes = 0
        failure: MissReason | None = None
        for span in restore_spans(match, live.length, end):
            failure = self._import_span(cache, live, span)
            if failure is not None:
                break
            imported += 1
            imported_bytes += span.rows.nbytes
        if self.runtime.capabilities.has_state:
            if failure is None and not self._import_state(cache, live, match, end):
                failure = MissReason.FAILED
            if failure is not None:
                self.pool.empty(live)
        cache.counters.restored_bytes += imported_bytes
        self.meter.restored(imported_bytes, imported, self.clock() - started)
        return failure

    def _import_span(self, cache: PrefixCache, live: LiveSequence, span: RestoreSpan) -> MissReason | None:
        """Import one span, or say why it did not go in. Bad rows are forgotten, bad cells emptied."""
        had_room = self.pool.free_cells >= span.rows.end - span.rows.start
        try:
            if self.runtime.import_rows(live.id, span.rows.memory, span.start, span.end):
                live.length = span.end
                return None
        except BackendFailure:
            # What the sequence holds now is unknown: it starts again.
            self.pool.empty(live)
        if not had_room:
            return MissReason.NO_ROOM
        cache.reject(span.segment)
        return MissReason.FAILED

    def _import_state(self, cache: PrefixCache, live: LiveSequence, match: Match, end: int) -> bool:
        """Complete imported rows with the state at ``end``; a state that is refused is forgotten."""
        segment = segment_at(match, end)
        assert segment.state is not None
        try:
            if self.runtime.import_state(live.id, segment.state.memory, end):
                return True
        except BackendFailure:
            pass  # the caller empties the sequence
        cache.reject_state(segment)
        return False
