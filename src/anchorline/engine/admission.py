"""Starting a stream: match, plan, make room, restore.

waiting stream ── match ── plan ── room ── continue | fork | create ── import segments ── running
                             └── hold: another stream prefills what this one would, too
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from anchorline.cache.chains import RestoreSpan, disk_chain, host_chain, load_points, restore_spans
from anchorline.cache.difference import find_difference, goes_on_with, reach_of
from anchorline.cache.plan import Plan, Resident, Source, make_plan
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.tokens import common_prefix
from anchorline.cache.tree import NOTHING_MATCHED, Match
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.misses import find_miss
from anchorline.engine.order import Waiting, choose_next
from anchorline.engine.request import MissReason, PlanKind
from anchorline.engine.restoring import Restorer
from anchorline.engine.saving import Saver
from anchorline.engine.sharing import Prefilling, choose_wait
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Asked, Clock, Hold, LoadHold, Restoration, Stream
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime, TokenArray

log = logging.getLogger("anchorline.engine")

_PLAN_KINDS = {
    Source.CONTINUE: PlanKind.CONTINUE,
    Source.FORK: PlanKind.FORK,
    Source.HOST: PlanKind.RESTORE,
    Source.DISK: PlanKind.RESTORE,
    Source.NOTHING: PlanKind.COLD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prospect:
    """What is known of a stream's prompt before anything is done for it."""

    known: Match
    match: Match
    """``known``, where the request lets it be used."""
    plan: Plan
    seen: int
    """Leading tokens that an earlier prompt or reply contained."""
    earlier: list[TokenArray]
    """What those that contained them go on with; of the first choice alone."""


class Outcome(Enum):
    """What became of the attempt to start a stream."""

    STARTED = auto()
    NO_ROOM = auto()
    """The pool has too few free cells."""
    HELD = auto()
    """It waits until another stream has prefilled what both share, or for the disk tier (``Stream.hold``)."""


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
        prospect = self._prospect(stream, self._match(stream))
        stream.hold = self._hold(stream, prospect.plan, started)
        if stream.hold is None and prospect.plan.load_bytes:
            stream.hold = self._load(stream, started)
            prospect = self._prospect(stream, self._match(stream))
        if stream.hold is not None:
            return Outcome.HELD
        match, plan = prospect.match, prospect.plan
        if self.cache is not None:
            self.cache.pinning.use(stream.call.prompt, match)
        source = None if plan.sequence is None else self.pool[plan.sequence]
        if stream.call.request.background:
            self._succeed(stream, plan, source)
        if not self._make_room(stream, plan, source, import_end=self._import_end(match, plan)):
            return Outcome.NO_ROOM
        planned = self.clock()
        live = self._seat(stream, plan, source)
        failure, segments = self._put_back(stream, plan, live)
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
        stream.end_load()
        if stream.call.admitted_seconds is None:
            stream.call.admitted_seconds = started
            restoration = self._restoration(
                stream, prospect, restored=live.length, plan=_plan_kind(plan, live), segments=segments, failure=failure
            )
            restoration.plan_seconds, restoration.restore_seconds = planned - started, restored - planned
            stream.call.restoration = restoration
            self._note_call(stream)
            if self.cache is not None and self.cache.disk is not None:
                self.cache.disk.note_use(segment for segment in match.path if segment.start < live.length)
            if stream.call.request.on_admitted is not None:
                stream.call.request.on_admitted(stream.call.report(restored))
        return Outcome.STARTED

    def _note_call(self, stream: Stream) -> None:
        """Note the use of what was seen of a call's prompt, once."""
        call = stream.call
        if self.cache is not None and call.request.use_cache and call.call_class is None:
            call.call_class = self.cache.note_call(call.prompt)

    def preview(self, stream: Stream, *, keep_idle: int) -> Restoration:
        """What ``stream`` would begin with if it were admitted now. Changes nothing.

        Of the idle sequences all but ``keep_idle`` would be dropped first. Of a stateful model, sequences whose states
        are still to be saved count for what is saved of them. Whether it would be held is left out.
        """
        prospect = self._prospect(stream, self._known(stream), leaving=self._surplus(stream, keep=keep_idle))
        plan = prospect.plan
        return self._restoration(
            stream,
            prospect,
            restored=plan.restored_tokens,
            plan=_PLAN_KINDS[plan.source] if not plan.host_tokens else PlanKind.RESTORE,
            segments=_ends(restore_spans(prospect.match, plan.resident_tokens, plan.restored_tokens)),
            failure=None,
        )

    # -- account ------------------------------------------------------------------------------

    def _restoration(
        self,
        stream: Stream,
        prospect: _Prospect,
        *,
        restored: int,
        plan: PlanKind,
        segments: tuple[tuple[int, int], ...],
        failure: MissReason | None,
    ) -> Restoration:
        """What came back of a prompt, what did not, and where it leaves all that was seen."""
        seen, resident = prospect.seen, min(prospect.plan.resident_tokens, restored)
        reach = min(seen, stream.buffer.count - 1)
        unused = None if stream.call.request.use_cache else self.cache
        miss, missing_cut = find_miss(
            stream.call.prompt.cuts,
            restored=restored,
            reach=reach,
            declined=0 if unused is None else unused.resume_point(prospect.known, reach),
            failure=failure,
            unread=self._unread(stream, prospect.match, restored, reach),
            absence=prospect.known.absence,
            stateful=self.stateful,
        )
        return Restoration(
            plan=plan,
            resident_tokens=resident,
            host_tokens=restored - resident,
            disk_tokens=_disk_tokens(stream, resident, restored),
            seen_tokens=seen,
            miss=miss,
            missing_cut=missing_cut,
            difference=find_difference(stream.buffer.view(seen, stream.buffer.count), seen, prospect.earlier),
            sequence=prospect.plan.sequence if resident else None,
            segments=segments,
            rejected_plans=tuple((_PLAN_KINDS[kind], why) for kind, why in prospect.plan.rejected),
        )

    def _unread(self, stream: Stream, match: Match, restored: int, reach: int) -> MissReason | None:
        """Why what lies on disk was not read; None where there is nothing more."""
        if not any(point > restored for point in load_points(match, reach, stateful=self.stateful)):
            return None
        refused = stream.asked is not None and stream.asked.load is None
        return MissReason.EVICTED if refused else MissReason.CHEAPER

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
        best = self._closest(stream)
        if best is None:
            return 0
        if _may_well_go_on(best):
            self.pool.touch(self.pool[best.sequence])
        return best.match_tokens

    def _closest(self, stream: Stream) -> Resident | None:
        """The live sequence that holds most of what ``stream`` begins with."""
        residents = self._residents(stream, NOTHING_MATCHED)
        return max(residents, key=lambda resident: resident.match_tokens, default=None)

    def _surplus(self, stream: Stream, *, keep: int) -> list[int]:
        """The idle sequences that would be dropped before ``stream`` starts, if it were the next."""
        best = self._closest(stream)
        used = best.sequence if best is not None and self.max_passes and _may_well_go_on(best) else None
        idle = sorted((live.id for live in self.pool.idle()), key=lambda sequence: sequence == used)
        return idle[: max(0, len(idle) - keep)]

    # -- match and plan -----------------------------------------------------------------------

    def _match(self, stream: Stream) -> Match:
        """As ``_known``, once all is saved that helps only when it is."""
        if self.stateful and stream.call.request.use_cache:
            # A finished sequence can be gone on from at its tip alone; elsewhere only what is saved of it helps.
            self.saver.flush_all()
        return self._known(stream)

    def _known(self, stream: Stream) -> Match:
        """What the cache knows of the stream's tokens, whether or not the request lets it be used."""
        if self.cache is None:
            return NOTHING_MATCHED
        return self.cache.match(stream.call.prompt, stream.buffer.view(0, stream.buffer.count))

    def _prospect(self, stream: Stream, known: Match, *, leaving: Collection[int] = ()) -> _Prospect:
        """Match, plan, and what the account of them needs. Changes nothing."""
        match = known if stream.call.request.use_cache else NOTHING_MATCHED
        residents = [r for r in self._residents(stream, match) if r.sequence not in leaving]
        seen = max(known.seen, max((resident.match_tokens for resident in residents), default=0))
        return _Prospect(
            known=known,
            match=match,
            plan=self._plan(stream, match, residents),
            seen=seen,
            earlier=self._earlier(stream, known, residents, seen),
        )

    def _earlier(self, stream: Stream, known: Match, residents: list[Resident], seen: int) -> list[TokenArray]:
        """What the histories of the prompt's own tenant that agree with it furthest go on with."""
        call, rest = stream.call, stream.buffer.count - seen
        # Of heads that are common to all nothing is told but whether the prompt's own is there.
        if call.admitted_seconds is not None or call.request.background or not rest or seen < call.prompt.common_tokens:
            return []
        limit = reach_of(rest)
        found = [
            self.pool.goes_on_with(resident.sequence, seen, call.prompt.owners)[:limit]
            for resident in residents
            if resident.match_tokens == seen
        ]
        if known.deepest is not None and known.seen == seen:
            found.append(goes_on_with(known.deepest, seen, call.prompt.tenant, limit=limit))
        return found

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
        limit, disk, speeds = stream.buffer.count - 1, None, self.meter.speeds
        if self.cache is not None and self.cache.disk is not None and stream.asked is None:
            disk = disk_chain(match, limit, stateful=self.stateful)
            speeds = replace(speeds, load_seconds_per_byte=self.cache.disk.read_seconds_per_byte)
        return make_plan(
            stream.buffer.count,
            residents,
            host_chain(match, limit, stateful=self.stateful),
            speeds,
            may_fork=self.pool.has_free_id,
            may_extend=not self.stateful,
            disk=disk,
        )

    # -- hold ---------------------------------------------------------------------------------

    @staticmethod
    def _end_hold(stream: Stream, now: float) -> None:
        if stream.hold is not None and stream.call.admitted_seconds is None:
            held_seconds = now - stream.hold.started_seconds
            if isinstance(stream.hold, LoadHold):
                stream.call.load_seconds += held_seconds
            else:
                stream.call.sharing_seconds += held_seconds
        stream.hold = None

    def _load(self, stream: Stream, now: float) -> LoadHold | None:
        """Let ``stream`` wait for what it can use of the disk tier; None when the host tier has no room for it."""
        assert self.cache is not None
        self._note_call(stream)  # room is made by what its segments are worth now that they are used
        match = self._match(stream)
        load = self.cache.load(stream.call.prompt, match, stream.buffer.count - 1)
        stream.asked = Asked(load, match.restorable)
        return None if load is None else LoadHold(load, now)

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
        spans = restore_spans(match, plan.resident_tokens, plan.restored_tokens)
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

    def _put_back(
        self, stream: Stream, plan: Plan, live: LiveSequence
    ) -> tuple[MissReason | None, tuple[tuple[int, int], ...]]:
        """Import what the plan takes from the host; why not all of it came back, and the spans that did."""
        if self.cache is None or not plan.host_tokens or live.length != plan.resident_tokens:
            return None, ()
        # What was saved to make room may have split the segments, or taken their place.
        match, start = self._match(stream), live.length
        end = self.cache.resume_point(match, plan.restored_tokens)
        if end <= start:
            return None, ()
        failure = self.restorer.restore(self.cache, live, match, end)
        return failure, _ends(restore_spans(match, start, live.length))

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


def _may_well_go_on(resident: Resident) -> bool:
    """Whether most of a sequence is what a stream begins with."""
    return 2 * resident.match_tokens > resident.length_tokens


def _disk_tokens(stream: Stream, resident_tokens: int, restored_tokens: int) -> int:
    """How many of the restored tokens were read from disk for the stream."""
    if stream.asked is None or stream.asked.load is None:
        return 0
    return max(0, restored_tokens - max(resident_tokens, stream.asked.host_tokens))


def _plan_kind(plan: Plan, live: LiveSequence) -> PlanKind:
    """The kind that was carried out: a chain refused at its first segment leaves less than was planned."""
    if live.length == 0:
        return PlanKind.COLD
    return PlanKind.RESTORE if live.length > plan.resident_tokens else _PLAN_KINDS[plan.source]


def _ends(spans: Iterable[RestoreSpan]) -> tuple[tuple[int, int], ...]:
    return tuple((span.start, span.end) for span in spans)
