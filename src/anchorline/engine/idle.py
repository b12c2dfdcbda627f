"""Finished sequences that stay in the pool until they are gone on from, or have to go."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from anchorline.cache.chains import host_chain, restore_spans
from anchorline.cache.plan import Speeds, restore_seconds
from anchorline.cache.prefix_cache import PrefixCache
from anchorline.engine.crowding import Ahead, Idle, choose_leaving, most_saved
from anchorline.engine.live import LiveSequence, SequencePool
from anchorline.engine.saving import Saver
from anchorline.engine.speeds import SpeedMeter
from anchorline.llama.interface import Runtime

log = logging.getLogger("anchorline.engine")

LOSS_TOKENS_MIN = 256
"""To prefill less than this again is not worth the cells of a sequence used later."""
LOSS_TOKENS_MAX = 1536
"""So many tokens at its end tell how a sequence would be missed."""
HOST_FREE_SHARE = 0.5
"""With less than this free, what the host tier keeps today may have to go before it is asked for."""
HOST_SHARE_MAX = 0.25
"""What takes more of the host tier than this is not left to it alone: it might go before it comes back."""


class DropReason(StrEnum):
    """Why an idle sequence left the pool."""

    SURPLUS = "surplus"
    """More were idle than --resident-idle."""
    NO_ROOM = "no_room"
    """Others needed its cells."""
    CROWDING = "crowding"
    """Its cells would have slowed a call by more than its restore takes."""


@dataclass(slots=True, kw_only=True)
class IdleSequences:
    """Decides which finished sequences stay. What goes is saved before."""

    runtime: Runtime
    pool: SequencePool
    cache: PrefixCache | None
    saver: Saver
    meter: SpeedMeter
    spare_ids: int
    """Beyond those that streams and --resident-idle need."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By ``DropReason``."""
    shortened: int = 0
    """How often one lost its end alone."""

    def drop(self, live: LiveSequence, reason: DropReason) -> None:
        self.saver.flush(live)
        self.pool.drop(live)
        self.dropped[reason] += 1

    def in_order(self) -> list[LiveSequence]:
        """Who makes room first: what comes back from the host tier to its end; of either kind the longest unused."""
        return [live for _, live in self._ranked()]

    def _ranked(self, *, used: int | None = None) -> list[tuple[bool, LiveSequence]]:
        """Who makes room first, and whether each would be lost; the sequence ``used`` last of its kind."""
        ranked = [(self._is_lost(live), live) for live in self.pool.idle()]
        return sorted(ranked, key=lambda each: (each[0], each[1].id == used, each[1].last_used))

    def _is_lost(self, live: LiveSequence) -> bool:
        """Whether what lies at its end would have to be prefilled again."""
        return self.lost_tokens(live, LOSS_TOKENS_MAX) >= LOSS_TOKENS_MIN

    def lost_tokens(self, live: LiveSequence, cells: int) -> int:
        """How many of its last ``cells`` tokens would have to be prefilled again; what is still being saved counts."""
        kept = 0 if self.cache is None else self._kept_tokens(live, self.cache)
        return min(cells, live.length - kept)

    def make_room(self, cells: int) -> bool:
        """Shorten the first in order by ``cells``; of a stateful model drop all. False when none is idle."""
        idle = self.in_order()
        if idle and self.runtime.capabilities.can_trim:
            self.shorten(idle[0], cells)
            return True
        return self.drop_all(DropReason.NO_ROOM)

    def shorten(self, live: LiveSequence, cells: int, *, kept_tokens: int = 0) -> None:
        """Free the last ``cells`` of a sequence or more, but none of its first ``kept_tokens``.

        Cells that others hold, too, are not free without it, so it keeps them, or goes if it would have no others and
        none are to be kept. One that cannot be trimmed goes.
        """
        if not self.runtime.capabilities.can_trim:
            assert not kept_tokens
            self.drop(live, DropReason.NO_ROOM)
            return
        self.saver.flush(live)
        common = self.pool.common_tokens(live)
        length = self._import_start(live, live.length - cells)
        if length <= common and not kept_tokens:
            self.drop(live, DropReason.NO_ROOM)
            return
        length = max(length, common, kept_tokens)
        if length < live.length:
            self.pool.trim(live, length)
            self.shortened += 1

    def _import_start(self, live: LiveSequence, position: int) -> int:
        """Where the import begins that puts back what lies behind ``position``: all of it takes cells meanwhile."""
        if self.cache is None:
            return position
        match = self.cache.match(live.prompt, live.decoded)
        spans = restore_spans(match, 0, match.restorable)
        return next((span.start for span in spans if span.start < position < span.end), position)

    def surplus(self, number: int, *, used: int | None = None) -> list[LiveSequence]:
        """Who leaves when ``number`` are to stay; the sequence ``used`` last of its kind.

        As long as there are ids to spare not who would be lost with its cells, nor anybody while the host tier may
        have to push something out.
        """
        may_lose = self._is_host_short()
        ranked = self._ranked(used=used)
        beyond = len(ranked) - number
        return [
            live
            for place, (is_lost, live) in enumerate(ranked)
            if place < beyond - self.spare_ids or (place < beyond and not may_lose and not is_lost)
        ]

    def _is_host_short(self) -> bool:
        if self.cache is None:
            return True
        arena = self.cache.arena
        return arena.limit_bytes - arena.used_bytes < HOST_FREE_SHARE * arena.limit_bytes

    def keep(self, number: int) -> None:
        """Drop the surplus beyond ``number``."""
        if len(self.pool.idle()) > number:
            for live in self.surplus(number):
                self.drop(live, DropReason.SURPLUS)

    def drop_all(self, reason: DropReason) -> bool:
        """False when none is idle."""
        idle = self.pool.idle()
        for live in idle:
            self.drop(live, reason)
        return bool(idle)

    def make_way(self, ahead: Ahead) -> None:
        """Drop what would slow a call that has its sequence by more than it is worth.

        Only what the host tier keeps to its last token, so that whoever goes on from it has nothing to prefill again.
        """
        speeds = self.meter.speeds
        if self.cache is None or not speeds.prefill_seconds_per_token_cell:
            return
        idle = {live.id: live for live in self.pool.idle() if self._is_safe(live, self.cache)}
        cells = {sequence: self.pool.cells_of(live) for sequence, live in idle.items()}
        staying = [self.pool.cells_of(live) for live in self.pool if live.id not in idle]
        if most_saved(cells.values(), staying, ahead, speeds) <= speeds.restore_seconds_per_segment:
            return  # not even one restore's worth
        leaving = choose_leaving(
            [
                Idle(
                    sequence=sequence,
                    cells=cells[sequence],
                    restore_seconds=self._restore_seconds(live, self.cache, speeds),
                )
                for sequence, live in idle.items()
            ],
            staying,
            ahead,
            speeds,
        )
        for live in map(idle.__getitem__, leaving):
            self.saver.flush(live)
            if self._kept_tokens(live, self.cache) == live.length:
                log.debug("sequence %d leaves, as its %d tokens would slow a call", live.id, live.length)
                self.drop(live, DropReason.CROWDING)

    def _is_safe(self, live: LiveSequence, cache: PrefixCache) -> bool:
        """Whether the host tier is large enough to be trusted with it."""
        return self._nbytes(live.length) <= HOST_SHARE_MAX * cache.arena.limit_bytes

    def _nbytes(self, tokens: int) -> float:
        return tokens * self.runtime.limits.bytes_per_token + self.runtime.capabilities.state_bytes

    def _kept_tokens(self, live: LiveSequence, cache: PrefixCache) -> int:
        return cache.resume_point(cache.match(live.prompt, live.decoded), live.length)

    def _restore_seconds(self, live: LiveSequence, cache: PrefixCache, speeds: Speeds) -> float:
        """What it would take to restore a sequence; what is still to be saved of it will be one segment."""
        stateful = self.runtime.capabilities.has_state
        chain = host_chain(cache.match(live.prompt, live.decoded), live.length, stateful=stateful)
        kept = 0 if chain is None else chain.match_tokens
        seconds = restore_seconds(0, kept, chain, speeds)
        if kept < live.length:
            seconds += speeds.restore_seconds_per_segment
            seconds += self._nbytes(live.length - kept) * speeds.restore_seconds_per_byte
        return seconds
