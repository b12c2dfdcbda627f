"""The cache of one model: segment tree, host arena, pins and eviction behind one face."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from anchorline.cache.cuts import PIECE_TOKENS_MIN, chunk_ends, piece_ends
from anchorline.cache.eviction import Victims
from anchorline.cache.host import Extent, HostArena
from anchorline.cache.pins import HeadPins, PinName
from anchorline.cache.prompt import Prompt
from anchorline.cache.tree import Absence, Match, Rows, Segment, SegmentTree
from anchorline.llama.interface import TokenArray

Allocate = Callable[[int], memoryview | None]
Export = Callable[[int, int, Allocate], memoryview | None]
"""Exports the rows of [start, end) into memory from the allocator; None when that gave none."""

PIN_SHARE = 0.5
"""Pins may hold this share of the budget."""
PIECE_BYTES_MAX = 128 << 20
"""About the largest export; at memory speed it takes a few hundredths of a second."""


@dataclass(slots=True)
class CacheCounters:
    """What happened so far; only grows."""

    saved_segments: int = 0
    exported_bytes: int = 0
    restored_bytes: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    restore_failures: int = 0
    unsaved: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RestoreSpan:
    """One import: the part [start, end) of ``rows``; ``segment`` is the first it belongs to."""

    segment: Segment
    rows: Rows
    start: int
    end: int


class PrefixCache:
    """Which prefixes are kept in host RAM. Not thread-safe; owned by the engine thread.

    In exact mode segments are prefill chunks and are matched whole.
    """

    def __init__(self, *, budget_bytes: int, exact: bool, batch_tokens: int, bytes_per_token: float) -> None:
        """``bytes_per_token`` is an estimate that bounds pieces; what is kept is counted as it is."""
        self.arena = HostArena(budget_bytes)
        self.tree = SegmentTree(splitting=not exact)
        self.pins = HeadPins(limit_bytes=int(self.arena.budget_bytes * PIN_SHARE))
        self.counters = CacheCounters()
        self._batch_tokens = batch_tokens
        self._piece_tokens = max(PIECE_TOKENS_MIN, int(PIECE_BYTES_MAX / bytes_per_token))

    # -- reading ------------------------------------------------------------------------------

    def match(self, prompt: Prompt, tokens: TokenArray) -> Match:
        """How far ``tokens`` agree with what was seen and what is kept. Changes nothing.

        ``tokens`` are the prompt's, and what was generated since when a stream is taken up again.
        """
        if self.tree.splitting:
            return self.tree.match(tokens)
        return self.tree.match_chunks(tokens, chunk_ends(prompt, self._batch_tokens)[:-1])

    def touch(self, match: Match, restored: int) -> None:
        """Note that the segments of ``match`` up to ``restored`` were used."""
        self.tree.touch([segment for segment in match.chain if segment.start < restored])

    def reject(self, segment: Segment) -> None:
        """Forget the rows of ``segment`` and below: a restore of it was refused."""
        self.counters.restore_failures += 1
        self.tree.drop_below(segment, Absence.RESTORE_FAILED)
        self.pins.forget_ghosts()

    @staticmethod
    def spans(match: Match, start: int, end: int) -> list[RestoreSpan]:
        """The imports that put back [start, end); neighbours that view one export are one import."""
        spans: list[RestoreSpan] = []
        for segment in match.chain:
            low, high = max(segment.start, start), min(segment.end, end)
            if low >= high:
                continue
            assert segment.rows is not None
            if spans and spans[-1].rows is segment.rows:
                spans[-1] = RestoreSpan(spans[-1].segment, segment.rows, spans[-1].start, high)
            else:
                spans.append(RestoreSpan(segment, segment.rows, low, high))
        return spans

    # -- saving -------------------------------------------------------------------------------

    def save(self, prompt: Prompt, tokens: TokenArray, export: Export) -> Iterator[int]:
        """Keep the rows of ``tokens``, as far as they are not kept yet, and pin the head anchor.

        ``tokens`` begin as the prompt does. Yields the end of each piece once it is kept, so that
        the engine can do other work in between. The path is leased until the iterator ends.
        """
        self.tree.advance()
        if self.tree.splitting:
            kept = self.tree.match(tokens).restorable
            ends = piece_ends(prompt, kept, int(tokens.size), longest=self._piece_tokens)
        else:
            ends = [end for end in chunk_ends(prompt, self._batch_tokens)[:-1] if end <= tokens.size]
        yield from self._save_pieces(tokens, ends, export)
        self._pin_head(prompt)

    def _save_pieces(self, tokens: TokenArray, ends: list[int], export: Export) -> Iterator[int]:
        path: list[Segment] = []
        try:
            for end in ends:
                parent = path[-1] if path else self.tree.root
                if parent.end >= end:
                    continue
                for node in self.tree.descend(tokens, end, from_node=parent):
                    node.leases += 1
                    path.append(node)
                if not self._fill(path, parent.end, end, export):
                    return
                yield end
        finally:
            for node in path:
                node.leases -= 1
            self.tree.prune_ghosts()

    def _fill(self, path: list[Segment], start: int, end: int, export: Export) -> bool:
        """Give rows to the ghosts of ``path`` in [start, end); False when they stay ghosts.

        One export serves a run of neighbouring ghosts, which share it.
        """
        missing = [node for node in path if node.start >= start and node.end <= end and node.rows is None]
        if not missing:
            return True
        low, high = missing[0].start, missing[-1].end
        reasons: list[Absence] = []
        rows = self._export(low, high, export, reasons)
        if rows is None:
            for node in missing:
                node.absence = reasons[-1]
            self.counters.unsaved[reasons[-1]] += 1
            return False
        for node in missing:
            self.tree.keep(node, rows)
        self.counters.saved_segments += 1
        self.counters.exported_bytes += rows.nbytes
        return True

    def _export(self, start: int, end: int, export: Export, reasons: list[Absence]) -> Rows | None:
        """One export into the arena, or None with the reason appended."""
        taken: list[Extent] = []
        victims = Victims(self.tree)

        def allocate(size_bytes: int) -> memoryview | None:
            if size_bytes > self.arena.budget_bytes:
                reasons.append(Absence.OVERSIZE)
                return None
            extent = self.arena.allocate(size_bytes)
            while extent is None and self._drop_one(victims):
                extent = self.arena.allocate(size_bytes)
            if extent is None:
                reasons.append(Absence.NO_ROOM)
                return None
            taken.append(extent)
            return self.arena.view(extent)

        memory = export(start, end, allocate)
        if memory is None:
            for extent in taken:
                self.arena.free(extent)
            if not reasons:
                reasons.append(Absence.EXPORT_FAILED)
            return None
        [extent] = taken
        return Rows(memory, start, end, lambda: self.arena.free(extent))

    def _drop_one(self, victims: Victims) -> bool:
        """Evict one segment; False when every kept one is held."""
        before = self.arena.used_bytes
        if not victims.drop_next():
            return False
        self.counters.evictions += 1
        self.counters.evicted_bytes += before - self.arena.used_bytes
        return True

    # -- pinning ------------------------------------------------------------------------------

    def _pin_head(self, prompt: Prompt) -> None:
        """Pin the prompt's head anchor if it deserves one and its rows are kept."""
        head = prompt.head_position
        if not prompt.pin_head or head is None:
            return
        segment = self._segment_at(prompt, head)
        if segment is None:
            return
        digest = hashlib.sha256(prompt.tokens[:head].tobytes()).hexdigest()[:16]
        name = PinName(prompt.tool_fingerprint or "no-tools", digest)
        if not self.pins.pin(name, segment):
            self.counters.unsaved["pin_over_limit"] += 1

    def _segment_at(self, prompt: Prompt, position: int) -> Segment | None:
        """The kept segment that ends at ``position`` (a splitting tree is split there)."""
        match = self.match(prompt, prompt.tokens)
        if match.restorable < position:
            return None
        if self.tree.splitting:
            return self.tree.descend(prompt.tokens, position, from_node=self.tree.root)[-1]
        return next((segment for segment in match.chain if segment.end == position), None)
