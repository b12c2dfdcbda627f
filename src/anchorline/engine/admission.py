"""Starting a stream: match, plan, make room, restore.

waiting stream ── match ── plan ── room ── continue | fork | create ── import segments ── running
                             └── hold: another stream prefills what this one would, too
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from anchorline.cache.chains import restore_spans
from anchorline.cache.plan import Plan, Resident, Source
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.tokens import common_prefix
from anchorline.cache.tree import NOTHING_MATCHED, Match
from anchorline.engine.crowding import Ahead
from anchorline.engine.idle import IdleSequences
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.order import Waiting, choose_next
from anchorline.engine.prospect import PLAN_KINDS, Prospector, ends_of, plan_kind
from anchorline.engine.request import MissReason, PlanKind
from anchorline.engine.restoring import Restorer
from anchorline.engine.returns import Returns
from anchorline.engine.saving import Saver
from anchorline.engine.sharing import Prefilling, choose_wait
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Asked, Clock, Hold, LoadHold, Restoration, ReturnHold, Stream
from anchorline.errors import BackendFailure
from anchorline.llama.interface import Runtime

log = logging.getLogger("anchorline.engine")


class Outcome(Enum):
    """What became of the attempt to start a stream."""

    STARTED = auto()
    NO_ROOM = auto()
    """The pool has too few free cells."""
    HELD = auto()
    """It waits: for another stream's prefill of what both share, for the disk tier, or for a conversation to come
    back (``Stream.hold``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """The cells that a stream takes before it runs, and who could give them."""

    own_cells: int
    """Of its tokens that are not live yet."""
    wanted_cells: int
    """With those that its imports take for a while."""
    resident_tokens: int
    """Its first, which are live."""
    going_on: LiveSequence | None
    """The sequence that it goes on from, and that gives up what lies behind them."""
    kept_tokens: dict[LiveSequence, int]
    """The idle sequences that can give cells, in order, and how many of its first tokens each keeps."""

    @property
    def most_given(self) -> int:
        """How many cells all of them could give."""
        return sum(live.length - max(live.shared, tokens) for live, tokens in self.kept_tokens.items())


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
    idle: IdleSequences
    restorer: Restorer
    prospector: Prospector
    meter: SpeedMeter
    clock: Clock
    running: Sequence[Stream]
    max_passes: int
    """So many streams may start before one that came earlier."""
    returns: Returns = field(default_factory=Returns)
    awaited_returns: int = 0
    """How often a stream was held for a conversation to come back."""

    @property
    def stateful(self) -> bool:
        return self.runtime.capabilities.has_state

    def admit(self, stream: Stream) -> Outcome:
        """Try to start ``stream``; when it must wait on, nothing changed but the idle sequences, and its hold."""
        started = self.clock()
        has_waited = isinstance(stream.hold, ReturnHold)
        self._end_hold(stream, started)
        prospect = self.prospector.look(stream, self.prospector.match(stream))
        stream.hold = self._hold(stream, prospect.plan, started)
        if stream.hold is None and prospect.plan.load_bytes:
            stream.hold = self._load(stream, prospect.plan, started)
            if stream.hold is None:
                prospect = self.prospector.look(stream, self.prospector.match(stream))
        if stream.hold is not None:
            return Outcome.HELD
        match, plan = prospect.match, prospect.plan
        if self.cache is not None:
            self.cache.pinning.use(stream.call.prompt, match)
        source = None if plan.sequence is None else self.pool[plan.sequence]
        if stream.call.request.background:
            self._succeed(stream, plan, source)
        room = self._room(stream, plan, source, import_end=self._import_end(match, plan))
        if self.running and self.pool.free_cells + room.most_given <= room.own_cells:
            return Outcome.NO_ROOM
        if not has_waited:  # who did to the end waits no more unless something comes or ends
            stream.hold = self._await_return(stream, room, started)
        if stream.hold is not None:
            return Outcome.HELD
        if not self._make_room(room):
            return Outcome.NO_ROOM
        live = self._seat(stream, plan, source)
        if not stream.call.request.background:  # nobody waits for those
            self.idle.make_way(self._ahead(stream, plan))  # what was forked may go: the shared cells stay
        planned = self.clock()
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
            restoration = self.prospector.restoration(
                stream, prospect, restored=live.length, plan=plan_kind(plan, live), segments=segments, failure=failure
            )
            restoration.plan_seconds, restoration.restore_seconds = planned - started, restored - planned
            stream.call.restoration = restoration
            self._note_call(stream, plan)
            if self.cache is not None and self.cache.disk is not None:
                self.cache.disk.note_use(segment for segment in match.path if segment.start < live.length)
            if stream.call.request.on_admitted is not None:
                stream.call.request.on_admitted(stream.call.report(restored))
        return Outcome.STARTED

    def _note_call(self, stream: Stream, plan: Plan) -> None:
        """Note the use of what was seen of a call's prompt, once."""
        call = stream.call
        if self.cache is not None and call.request.use_cache and call.call_class is None:
            resident_tokens = plan.resident_tokens + 1  # the last of a prompt is computed in any case
            call.call_class = self.cache.note_call(call.prompt, resident_tokens=resident_tokens)

    def preview(self, stream: Stream, *, keep_idle: int) -> Restoration:
        """What ``stream`` would begin with if it were admitted now. Changes nothing.

        Of the idle sequences all but ``keep_idle`` would be dropped first. Of a stateful model, sequences whose states
        are still to be saved count for what is saved of them. Whether it would be held is left out.
        """
        leaving = self._surplus(stream, keep=keep_idle)
        prospect = self.prospector.look(stream, self.prospector.known(stream), leaving=leaving)
        plan = prospect.plan
        return self.prospector.restoration(
            stream,
            prospect,
            restored=plan.restored_tokens,
            plan=PLAN_KINDS[plan.source] if not plan.host_tokens else PlanKind.RESTORE,
            segments=ends_of(restore_spans(prospect.match, plan.resident_tokens, plan.restored_tokens)),
            failure=None,
        )

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

        Not once its call has begun, nor when it was held until now; unless that was to let another go first.
        """
        held = stream.hold is not None and not isinstance(stream.hold, ReturnHold)
        fresh = stream.call.admitted_seconds is None and not held
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
        residents = self.prospector.residents(stream, NOTHING_MATCHED)
        return max(residents, key=lambda resident: resident.match_tokens, default=None)

    def _surplus(self, stream: Stream, *, keep: int) -> list[int]:
        """The idle sequences that would be dropped before ``stream`` starts, if it were the next."""
        best = self._closest(stream)
        used = best.sequence if best is not None and self.max_passes and _may_well_go_on(best) else None
        return [live.id for live in self.idle.surplus(keep, used=used)]

    # -- hold ---------------------------------------------------------------------------------

    @staticmethod
    def _end_hold(stream: Stream, now: float) -> None:
        hold, call = stream.hold, stream.call
        if call.admitted_seconds is None:
            if isinstance(hold, LoadHold):
                call.load_seconds += now - hold.started_seconds
            elif isinstance(hold, Hold):
                call.sharing_seconds += now - hold.started_seconds
        stream.hold = None

    def _load(self, stream: Stream, plan: Plan, now: float) -> LoadHold | None:
        """Let ``stream`` wait for what it can use of the disk tier; None when the host tier has no room for it."""
        assert self.cache is not None
        self._note_call(stream, plan)  # room is made by what its segments are worth now that they are used
        match = self.prospector.match(stream)
        limit = stream.buffer.count - 1
        prefill_seconds = (limit - match.restorable) * self.meter.speeds.prefill_seconds_per_token
        load = self.cache.load(stream.call.prompt, match, limit, prefill_seconds=prefill_seconds)
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

    def _room(self, stream: Stream, plan: Plan, source: LiveSequence | None, *, import_end: int) -> _Room:
        """What ``stream`` needs, and what the idle sequences could give. Changes nothing.

        Of one that is to be forked what the fork shares stays.
        """
        own_cells = stream.buffer.count - plan.resident_tokens
        going_on = source if plan.source is Source.CONTINUE else None
        may_shorten = plan.source is Source.FORK and self.runtime.capabilities.can_trim
        return _Room(
            own_cells=own_cells,
            wanted_cells=max(own_cells, import_end - plan.resident_tokens),
            resident_tokens=plan.resident_tokens,
            going_on=going_on,
            kept_tokens={
                live: plan.resident_tokens if live is source else 0
                for live in self.idle.in_order()
                if live is not source or live is going_on or may_shorten
            },
        )

    def _free_cells(self, room: _Room) -> int:
        """With those that the sequence that the stream goes on from gives up."""
        given_up = 0 if room.going_on is None else self.pool.gives_up(room.going_on, room.resident_tokens)
        return self.pool.free_cells + given_up

    def _make_room(self, room: _Room) -> bool:
        """Shorten idle sequences in their order until the stream's own cells fit, and if they can those to import."""
        for live, tokens in room.kept_tokens.items():
            missing_cells = room.wanted_cells + 1 - self._free_cells(room)
            if missing_cells <= 0:
                return True
            if live is not room.going_on:
                self.idle.shorten(live, missing_cells, kept_tokens=tokens)
        return self._free_cells(room) > room.own_cells or not self.running

    def _await_return(self, stream: Stream, room: _Room, now: float) -> ReturnHold | None:
        """How long ``stream`` should wait for others to come back, rather than take what they would prefill again."""
        if stream.call.request.background or not self.max_passes or not self.may_be_passed(stream):
            return None
        latest = now
        missing_cells = room.own_cells + 1 - self._free_cells(room)
        for live, tokens in room.kept_tokens.items():
            if missing_cells <= 0:
                break
            if live is room.going_on:
                continue
            cells = min(missing_cells, live.length - max(live.shared, tokens))
            missing_cells -= cells
            loss_seconds = self.idle.lost_tokens(live, cells) * self.meter.token_seconds
            idle_seconds = now - live.idle_since_seconds
            latest = max(latest, now + self.returns.wait_seconds(idle_seconds, loss_seconds))
        if latest == now:
            return None
        self.awaited_returns += 1
        log.debug("%s waits %.3f s for a conversation to come back", stream.call.request.id, latest - now)
        return ReturnHold(latest, self.clock)

    def note_arrival(self, stream: Stream) -> None:
        """Learn from a new call how long the conversation that it goes on with took to come back."""
        best = self._closest(stream)
        if best is not None and not best.busy and _may_well_go_on(best):
            self.returns.note(self.clock() - self.pool[best.sequence].idle_since_seconds)

    def _ahead(self, stream: Stream, plan: Plan) -> Ahead:
        """What the stream will do, and reply as long as others lately."""
        reply_tokens = min(stream.call.max_tokens - stream.generated, int(self.meter.reply_tokens))
        return Ahead(
            imported_tokens=plan.host_tokens,
            computed_tokens=stream.buffer.count - plan.restored_tokens + reply_tokens,
        )

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
        match, start = self.prospector.match(stream), live.length
        end = self.cache.resume_point(match, plan.restored_tokens)
        if end <= start:
            return None, ()
        failure = self.restorer.restore(self.cache, live, match, end)
        return failure, ends_of(restore_spans(match, start, live.length))

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
