"""Starting a stream: match, plan, make room, restore.

waiting stream ── match ── plan ── room ── continue | fork | create ── import segments ── running
                             └── hold: another stream prefills what this one would, too
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from anchorline.cache.plan import HostChain, Plan, Resident, Source, make_plan
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.tokens import common_prefix
from anchorline.cache.tree import Absence, Match
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.order import Waiting, choose_next
from anchorline.engine.request import MissReason, PlanKind
from anchorline.engine.restoring import Restorer
from anchorline.engine.saving import Saver
from anchorline.engine.sharing import Prefilling, choose_wait
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Clock, Hold, Restoration, Stream
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime

log = logging.getLogger("anchorline.engine")

NOTHING_MATCHED = Match((), 0, 0, None)

_PLAN_KINDS = {
    Source.CONTINUE: PlanKind.CONTINUE,
    Source.FORK: PlanKind.FORK,
    Source.HOST: PlanKind.RESTORE,
    Source.NOTHING: PlanKind.COLD,
}


class Outcome(Enum):
    """What became of the attempt to start a stream."""

    STARTED = auto()
    NO_ROOM = auto()
    """The pool has too few free cells."""
    HELD = auto()
    """It waits until another stream has prefilled what both share (``Stream.hold``)."""


@dataclass(slots=True, kw_only=True)
class Admission:
    """Gives waiting streams a live sequence that holds as much of their prefix as pays.

    ``cache`` is None when the cache is off; then only streams of one call share cells.
    ``running`` is the loop's own list.
    """

    runtime: Runtime
    pool: SequencePool
    cache: PrefixCache | None
    saver: Saver
    restorer: Restorer
    meter: SpeedMeter
    clock: Clock
    running: Sequence[Stream]
    max_passes: int
    """So many streams may start before one that came earlier."""

    @property
    def stateful(self) -> bool:
        return self.runtime.capabilities.has_state

    def admit(self, stream: Stream) -> Outcome:
        """Try to start ``stream``; when it must wait on, nothing changed but idle sequences dropped, and its hold."""
        started = self.clock()
        self._end_hold(stream, started)
        known = self._match(stream)
        match = known if stream.call.request.use_cache else NOTHING_MATCHED
        residents = self._residents(stream, match)
        plan = self._plan(stream, match, residents)
        stream.hold = self._hold(stream, plan, started)
        if stream.hold is not None:
            return Outcome.HELD
        if self.cache is not None:
            self.cache.pinning.use(stream.call.prompt, match)
        source = None if plan.sequence is None else self.pool[plan.sequence]
        if stream.call.request.background:
            self._succeed(stream, plan, source)
        if not self._make_room(stream, plan, source, import_end=self._import_end(match, plan)):
            return Outcome.NO_ROOM
        planned = self.clock()
        live = self._seat(stream, plan, source)
        failure = None
        if self.cache is not None and plan.host_tokens and live.length == plan.resident_tokens:
            # What was saved to make room may have split the segments, or taken their place.
            match = self._match(stream)
            end = self.cache.resume_point(match, plan.restored_tokens)
            if end > live.length:
                failure = self.restorer.restore(self.cache, live, match, end)
        restored = self.clock()
        stream.live = live
        log.debug(
            "%s starts: %s, %d of %d tokens restored, sequence %d, rejected: %s",
            stream.call.request.id,
            plan.source,
            live.length,
            stream.buffer.count,
            live.id,
            "; ".join(f"{source} ({why})" for source, why in plan.rejected) or "nothing",
        )
        if stream.call.admitted_seconds is None:
            stream.call.admitted_seconds = started
            seen = max(known.seen, max((r.match_tokens for r in residents), default=0))
            miss, missing_cut = self._miss(stream, known, seen, live.length, failure=failure)
            stream.call.restoration = Restoration(
                plan=_plan_kind(plan, live),
                resident_tokens=min(plan.resident_tokens, live.length),
                host_tokens=max(0, live.length - plan.resident_tokens),
                seen_tokens=seen,
                miss=miss,
                missing_cut=missing_cut,
                plan_seconds=planned - started,
                restore_seconds=restored - planned,
                rejected_plans=tuple((_PLAN_KINDS[kind], why) for kind, why in plan.rejected),
            )
            if self.cache is not None and stream.call.request.use_cache:
                stream.call.call_class = self.cache.note_call(stream.call.prompt)
            if stream.call.request.on_admitted is not None:
                stream.call.request.on_admitted(stream.call.report(restored))
        return Outcome.STARTED

    # -- order --------------------------------------------------------------------------------

    def next_of(self, waiting: Sequence[Stream]) -> Stream:
        """The stream to start next. The idle sequences that some of them go on from become the last to be dropped."""
        if self.max_passes == 0:
            return waiting[0]
        held = [self._held_tokens(stream) for stream in waiting]
        order = [
            Waiting(missing_tokens=stream.buffer.count - tokens, may_be_passed=self.may_be_passed(stream))
            for stream, tokens in zip(waiting, held, strict=True)
        ]
        return waiting[choose_next(order)]

    def may_be_passed(self, stream: Stream) -> bool:
        """Whether one more stream that came later may start before ``stream``.

        Not once its call has begun, nor when it was held until now.
        """
        fresh = stream.call.admitted_seconds is None and stream.hold is None
        return fresh and stream.passes < self.max_passes

    def _held_tokens(self, stream: Stream) -> int:
        """How many tokens of ``stream`` a live sequence holds; one that it may well go on from counts as used."""
        residents = self._residents(stream, NOTHING_MATCHED)
        best = max(residents, key=lambda resident: resident.match_tokens, default=None)
        if best is None:
            return 0
        if 2 * best.match_tokens > best.length_tokens:
            self.pool.touch(self.pool[best.sequence])
        return best.match_tokens

    # -- match and plan -----------------------------------------------------------------------

    def _match(self, stream: Stream) -> Match:
        """What the cache knows of the stream's tokens, whether or not the request lets it be used."""
        if self.cache is None:
            return NOTHING_MATCHED
        if self.stateful and stream.call.request.use_cache:
            # A finished sequence can be gone on from at its tip alone; elsewhere only what is saved of it helps.
            self.saver.flush_all()
        return self.cache.match(stream.call.prompt, stream.buffer.view(0, stream.buffer.count))

    def _residents(self, stream: Stream, match: Match) -> list[Resident]:
        found = self.pool.residents(stream.buffer.view(0, stream.buffer.count), stream.call.prompt.owners)
        if stream.call.request.background and self.stateful:
            found = [
                resident if self._is_saved(resident, match) else replace(resident, busy=True) for resident in found
            ]
        if self.cache is not None and stream.call.request.use_cache:
            return found
        own = {sibling.live.id for sibling in stream.call.streams if sibling.live is not None}
        return [resident for resident in found if resident.sequence in own]

    def _is_saved(self, resident: Resident, match: Match) -> bool:
        """Whether the tip of a sequence can be gone back to once it has been gone on from."""
        return (
            self.cache is not None and self.cache.resume_point(match, resident.length_tokens) == resident.length_tokens
        )

    def _plan(self, stream: Stream, match: Match, residents: list[Resident]) -> Plan:
        host = None
        reach = 0 if self.cache is None else self.cache.resume_point(match, stream.buffer.count - 1)
        if self.cache is not None and reach:
            spans = self.cache.spans(match, 0, reach)
            nbytes = sum(span.rows.nbytes for span in spans)
            covered = sum(span.rows.tokens for span in spans)
            host = HostChain(
                match_tokens=reach,
                ends=(*(span.end for span in spans[:-1]), spans[-1].rows.end),
                bytes_per_token=nbytes / covered,
                state_bytes=self._state_bytes(match, reach),
            )
        return make_plan(
            stream.buffer.count,
            residents,
            host,
            self.meter.speeds,
            may_fork=self.pool.has_free_id,
            may_extend=not self.stateful,
        )

    def _state_bytes(self, match: Match, position: int) -> int:
        if self.cache is None or not self.stateful:
            return 0
        state = self.cache.segment_at(match, position).state
        assert state is not None
        return state.nbytes

    # -- hold ---------------------------------------------------------------------------------

    @staticmethod
    def _end_hold(stream: Stream, now: float) -> None:
        if stream.hold is not None and stream.call.admitted_seconds is None:
            stream.call.sharing_seconds += now - stream.hold.started_seconds
        stream.hold = None

    def _hold(self, stream: Stream, plan: Plan, now: float) -> Hold | None:
        """What ``stream`` should wait for; only ever a running stream, so that no two wait for each other."""
        if self.cache is None or not stream.call.request.use_cache:
            return None
        sources = [source for source in self.running if source.in_prompt]
        prefilling = [self._prefilling(source, stream) for source in sources]
        wait = choose_wait(stream.buffer.count, plan.restored_tokens, prefilling, self.meter.speeds)
        if wait is None:
            return None
        source = sources[wait.source]
        log.debug(
            "%s waits for %s to prefill their first %d tokens",
            stream.call.request.id,
            source.call.request.id,
            wait.position,
        )
        return Hold(source, wait.position, now)

    def _prefilling(self, source: Stream, stream: Stream) -> Prefilling:
        live, prompt = source.live, source.call.prompt
        assert live is not None
        usable = 0
        if source.call.request.use_cache:
            usable = stream.call.prompt.owners.usable(prompt.owners, len(prompt))
        return Prefilling(
            shared_tokens=common_prefix(prompt.tokens[:usable], stream.buffer.view(0, stream.buffer.count)),
            decoded_tokens=live.length,
            resume_points=(*source.stops, len(prompt)) if self.stateful else None,
        )

    # -- room ---------------------------------------------------------------------------------

    def _import_end(self, match: Match, plan: Plan) -> int:
        """Where a sequence would end that held all cells of the plan's imports, also those that don't stay."""
        spans = PrefixCache.spans(match, plan.resident_tokens, plan.restored_tokens)
        return max((span.cells_end for span in spans), default=0)

    def _make_room(self, stream: Stream, plan: Plan, source: LiveSequence | None, *, import_end: int) -> bool:
        """Drop idle sequences, oldest first, until the stream's own cells fit, and if they can those to import."""
        own_cells = stream.buffer.count - plan.resident_tokens
        wanted_cells = max(own_cells, import_end - plan.resident_tokens)
        given_up = source.length - plan.resident_tokens if source and plan.source is Source.CONTINUE else 0
        others = [idle for idle in self.pool.idle() if idle is not source]
        most_cells = self.pool.free_cells + given_up + sum(idle.cells for idle in others)
        if self.running and most_cells <= own_cells:
            return False
        for idle in self.pool.idle():
            if self.pool.free_cells + given_up > wanted_cells:
                return True
            if idle is not source:
                self.saver.flush(idle)
                self.pool.drop(idle)
        return self.pool.free_cells + given_up > own_cells or not self.running

    def _succeed(self, stream: Stream, plan: Plan, source: LiveSequence | None) -> None:
        """Let a background stream take the place of the sequence that it follows, where it has one of its own."""
        prompt = stream.call.prompt
        goes_on = plan.source is Source.CONTINUE or self.stateful  # a stateful one was forked to be kept
        self.pool.demote_kin(prompt.tokens, source if goes_on else None, beyond=prompt.head_position or 0)

    # -- carry out ----------------------------------------------------------------------------

    def _seat(self, stream: Stream, plan: Plan, source: LiveSequence | None) -> LiveSequence:
        """The sequence the stream runs in, holding the plan's resident tokens."""
        prompt, buffer = stream.call.prompt, stream.buffer
        if source is None:
            return self.pool.create(prompt, buffer)
        tight = self.pool.free_cells <= stream.buffer.count - plan.resident_tokens
        if plan.source is Source.CONTINUE or (tight and not source.busy):
            self.saver.flush(source)
            self.pool.take_over(source, plan.resident_tokens, prompt, buffer)
            return source
        try:
            return self.pool.fork(source, plan.resident_tokens, prompt, buffer)
        except BackendFailure:
            return self.pool.create(prompt, buffer)

    def _miss(
        self, stream: Stream, match: Match, seen: int, restored: int, *, failure: MissReason | None
    ) -> tuple[MissReason | None, str | None]:
        """Why less was restored than could have been, and which cut lacks its state; None when nothing was missed."""
        reach = min(seen, stream.buffer.count - 1)
        if restored >= reach:
            return None, None
        cache = None if stream.call.request.use_cache else self.cache
        if cache is not None and cache.resume_point(match, reach) > restored:
            return MissReason.OFF, None
        if failure is not None:
            return failure, None
        if match.absence is not None:
            return _ABSENCE_REASONS[match.absence], None
        if not self.stateful:
            return MissReason.CHEAPER, None
        cuts = [cut for cut in stream.call.prompt.cuts if restored < cut.position <= reach]
        return (MissReason.NO_STATE, cuts[-1].label) if cuts else (None, None)


_ABSENCE_REASONS = {
    Absence.EVICTED: MissReason.EVICTED,
    Absence.RESTORE_FAILED: MissReason.FAILED,
    Absence.NO_ROOM: MissReason.UNSAVED,
    Absence.OVERSIZE: MissReason.UNSAVED,
    Absence.MEMORY_SHORT: MissReason.UNSAVED,
    Absence.EXPORT_FAILED: MissReason.UNSAVED,
}


def _plan_kind(plan: Plan, live: LiveSequence) -> PlanKind:
    """The kind that was carried out: a chain refused at its first segment leaves less than was planned."""
    if live.length == 0:
        return PlanKind.COLD
    return PlanKind.RESTORE if live.length > plan.resident_tokens else _PLAN_KINDS[plan.source]
