"""What a waiting stream would begin with, and what is told of it once it has begun. Changes nothing but saves.

prompt tokens ── match (cache) ┐
                               ├── plan ── prospect ── restoration, once it is carried out
               residents (pool)┘
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from anchorline.cache.chains import RestoreSpan, disk_chain, host_chain, load_points
from anchorline.cache.difference import find_difference, goes_on_with, reach_of
from anchorline.cache.plan import Plan, Resident, Source, make_plan
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.cache.tree import NOTHING_MATCHED, Match
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.misses import find_miss
from anchorline.engine.request import MissReason, PlanKind
from anchorline.engine.saving import Saver
from anchorline.engine.speeds import SpeedMeter
from anchorline.engine.stream import Restoration, Stream
from anchorline.llama.interface import TokenArray

PLAN_KINDS = {
    Source.CONTINUE: PlanKind.CONTINUE,
    Source.FORK: PlanKind.FORK,
    Source.HOST: PlanKind.RESTORE,
    Source.DISK: PlanKind.RESTORE,
    Source.NOTHING: PlanKind.COLD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What is known of a stream's prompt before anything is done for it."""

    known: Match
    match: Match
    """``known``, where the request lets it be used."""
    plan: Plan
    seen: int
    """Leading tokens that an earlier prompt or reply contained."""
    earlier: list[TokenArray]
    """What those that contained them go on with; of the first choice alone."""


@dataclass(slots=True, kw_only=True)
class Prospector:
    """Looks at what the tiers hold of a stream's tokens. ``cache`` is None when the cache is off."""

    pool: SequencePool
    cache: PrefixCache | None
    saver: Saver
    meter: SpeedMeter
    stateful: bool
    """Whether the model has states."""

    def match(self, stream: Stream) -> Match:
        """As ``known``, once all is saved that helps only when it is."""
        if self.stateful and stream.call.request.use_cache:
            # A finished sequence can be gone on from at its tip alone; elsewhere only what is saved of it helps.
            self.saver.flush_all()
        return self.known(stream)

    def known(self, stream: Stream) -> Match:
        """What the cache knows of the stream's tokens, whether or not the request lets it be used."""
        if self.cache is None:
            return NOTHING_MATCHED
        return self.cache.match(stream.call.prompt, stream.buffer.view(0, stream.buffer.count))

    def look(self, stream: Stream, known: Match, *, leaving: Collection[int] = ()) -> Prospect:
        """Match, plan, and what the account of them needs. Changes nothing."""
        match = known if stream.call.request.use_cache else NOTHING_MATCHED
        residents = [r for r in self.residents(stream, match) if r.sequence not in leaving]
        seen = max(known.seen, max((resident.match_tokens for resident in residents), default=0))
        return Prospect(
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

    def residents(self, stream: Stream, match: Match) -> list[Resident]:
        """The live sequences that agree with the stream's beginning, as far as it may use them."""
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
        tier = None if self.cache is None else self.cache.disk
        if tier is not None and stream.asked is None and not tier.is_resting:
            disk = disk_chain(match, limit, stateful=self.stateful)
            speeds = replace(speeds, load_seconds_per_byte=tier.read_seconds_per_byte)
        return make_plan(
            stream.buffer.count,
            residents,
            host_chain(match, limit, stateful=self.stateful),
            speeds,
            may_fork=self.pool.has_free_id,
            may_extend=not self.stateful,
            disk=disk,
        )

    def restoration(
        self,
        stream: Stream,
        prospect: Prospect,
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
            disk_tokens=_disk_tokens(stream, prospect, resident, restored),
            seen_tokens=seen,
            miss=miss,
            missing_cut=missing_cut,
            difference=find_difference(stream.buffer.view(seen, stream.buffer.count), seen, prospect.earlier),
            sequence=prospect.plan.sequence if resident else None,
            segments=segments,
            expected_seconds=prospect.plan.expected_seconds,
            rejected_plans=tuple((PLAN_KINDS[kind], why) for kind, why in prospect.plan.rejected),
        )

    def _unread(self, stream: Stream, match: Match, restored: int, reach: int) -> MissReason | None:
        """Why what lies on disk was not read; None where there is nothing more."""
        if not any(point > restored for point in load_points(match, reach, stateful=self.stateful)):
            return None
        refused = stream.asked is not None and stream.asked.load is None
        return MissReason.EVICTED if refused else MissReason.CHEAPER


def _disk_tokens(stream: Stream, prospect: Prospect, resident_tokens: int, restored_tokens: int) -> int:
    """How many of the restored tokens were read from disk for the stream, or would be if it is only looked at."""
    if prospect.plan.load_bytes:  # a stream that starts has asked for them, and has a plan without
        host_tokens = prospect.match.restorable
    elif stream.asked is not None and stream.asked.load is not None:
        host_tokens = stream.asked.host_tokens
    else:
        return 0
    return max(0, restored_tokens - max(resident_tokens, host_tokens))


def plan_kind(plan: Plan, live: LiveSequence) -> PlanKind:
    """The kind that was carried out: a chain refused at its first segment leaves less than was planned."""
    if live.length == 0:
        return PlanKind.COLD
    return PlanKind.RESTORE if live.length > plan.resident_tokens else PLAN_KINDS[plan.source]


def ends_of(spans: Iterable[RestoreSpan]) -> tuple[tuple[int, int], ...]:
    return tuple((span.start, span.end) for span in spans)
