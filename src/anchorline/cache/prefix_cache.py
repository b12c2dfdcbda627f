"""The cache of one model: segment tree, host arena, pins and eviction behind one face."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from anchorline.cache.chains import load_points, resume_point
from anchorline.cache.classes import CallClass, at_end, classify
from anchorline.cache.compaction import Run, choose_merge, runs_of
from anchorline.cache.cuts import PIECE_TOKENS_MIN, chunk_ends, kept_chunk_ends, piece_ends
from anchorline.cache.disk import DiskTier
from anchorline.cache.host import HostArena
from anchorline.cache.loading import Load
from anchorline.cache.pinning import Pinning
from anchorline.cache.pins import NO_PINS, OtherPins, Pins
from anchorline.cache.policy import KeepValue, cost_aware
from anchorline.cache.prompt import Owners, Prompt
from anchorline.cache.retention import thin_states
from anchorline.cache.rows import State
from anchorline.cache.segment import Absence, Segment
from anchorline.cache.spilling import Post
from anchorline.cache.storage import Export, ExportState, GiveUp, HostStorage, nothing_parked
from anchorline.cache.stored import StoredIndex
from anchorline.cache.tree import Match, SegmentTree
from anchorline.disk.record import SegmentStore
from anchorline.llama.interface import Capabilities, TokenArray

log = logging.getLogger("anchorline.cache")

PIECE_BYTES_MAX = 128 << 20
"""About the largest export; at memory speed it takes a few hundredths of a second."""
PIECE_SHARE = 0.0625
"""No export is larger than this share of the budget: of what is too long to be kept, its beginning is."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What is saved, and for whom."""

    tokens: TokenArray
    owners: Owners
    call_class: CallClass
    promised: bool
    export: Export


class PrefixCache:
    """Which prefixes are kept in host RAM. Not thread-safe; owned by the engine thread.

    In exact mode segments are prefill chunks and are matched whole. With a stateful model a prefix
    is usable up to the deepest segment that has a state.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        arena: HostArena,
        pin_budget_bytes: int,
        max_pins: int,
        exact: bool,
        batch_tokens: int,
        bytes_per_token: float,
        clock: Callable[[], float],
        keep_value: KeepValue = cost_aware,
        drop_parked: GiveUp = nothing_parked,
        other_pins: OtherPins = NO_PINS,
    ) -> None:
        """``bytes_per_token`` is an estimate that bounds pieces; what is kept is counted as it is.

        ``clock`` is monotonic; pins expire by it. ``keep_value`` is the policy: what goes first when room is needed,
        once ``drop_parked`` gives up nothing more of what other caches keep in ``arena``. ``other_pins`` are theirs.
        """
        self.tree = SegmentTree(splitting=not exact, stateful=capabilities.has_state)
        self.storage = HostStorage(
            self.tree, arena=arena, keep_value=keep_value, bytes_per_token=bytes_per_token, drop_parked=drop_parked
        )
        self.arena = arena
        self.counters = self.storage.counters
        self.pins = Pins(
            limit_bytes=min(pin_budget_bytes, self.arena.budget_bytes),
            limit=max_pins,
            worth=lambda segment: self.storage.worth([segment]),
            others=other_pins,
        )
        self.pinning = Pinning(
            tree=self.tree,
            pins=self.pins,
            match=self.match,
            clock=clock,
            bytes_per_token=bytes_per_token,
            state_bytes=capabilities.state_bytes,
        )
        self.stored = StoredIndex(self.tree)
        self.disk: DiskTier | None = None
        self._clock = clock
        self._batch_tokens = batch_tokens
        piece_bytes = min(PIECE_BYTES_MAX, self.arena.budget_bytes * PIECE_SHARE)
        self._piece_tokens = max(PIECE_TOKENS_MIN, int(piece_bytes / max(bytes_per_token, 1.0)))

    def use_disk(self, store: SegmentStore, post: Post, *, indexed: Callable[[], None] = lambda: None) -> None:
        """Keep what is saved in ``store`` too, and read back what it has; ``post`` brings its calls to this thread.

        ``indexed`` is called once all that was there at the start is known.
        """
        self.disk = DiskTier(
            tree=self.tree,
            storage=self.storage,
            index=self.stored,
            pins=self.pins,
            store=store,
            post=post,
            clock=self._clock,
            indexed=indexed,
        )
        self.disk.start()

    def leave_disk(self) -> None:
        """Forget what lies on disk, which others may change from now on; what is in RAM stays."""
        self.stored.lose_all()
        self.stored = StoredIndex(self.tree)
        self.disk = None
        self.tree.prune_ghosts()

    def discard(self) -> None:
        """Free all that was taken, held or not. The cache must not be used any more.

        While the disk tier may still touch some of it only what that does not hold is freed.
        """
        if self.disk is None or self.disk.store.is_closed:
            self.storage.free_all()
        else:
            log.error("the disk does not answer: what was being written or read stays in RAM until the restart")
            self.tree.drop_below(self.tree.root, Absence.EVICTED)

    # -- reading ------------------------------------------------------------------------------

    def match(self, prompt: Prompt, tokens: TokenArray) -> Match:
        """How far ``tokens`` agree with what was seen and what is kept. Changes nothing.

        ``tokens`` are the prompt's or its first, and what was generated since when a stream is taken up again.
        """
        if self.tree.splitting:
            return self.tree.match(tokens, prompt.owners)
        ends = [end for end in chunk_ends(prompt, self._batch_tokens)[:-1] if end <= tokens.size]
        return self.tree.match_chunks(tokens, ends, prompt.owners)

    def resume_point(self, match: Match, limit: int) -> int:
        """The last position, at most ``limit``, up to which the host tier can restore ``match``; 0 when nowhere."""
        return resume_point(match, limit, stateful=self.tree.stateful)

    def load(self, prompt: Prompt, match: Match, limit: int, *, prefill_seconds: float) -> Load | None:
        """Begin to read from disk what the host tier lacks of ``match`` up to ``limit``; None when it has no room.

        ``prefill_seconds`` is what prefilling the same would take.
        """
        assert self.disk is not None
        for end in load_points(match, limit, stateful=self.tree.stateful):
            path = [segment for segment in match.path if segment.start < end]
            worth = math.inf if prompt.promised else self.storage.worth(path)
            load = self.disk.load(path, end, worth=worth, prefill_seconds=prefill_seconds)
            if load is not None:
                return load
        return None

    def note_call(self, prompt: Prompt, *, resident_tokens: int = 0) -> CallClass:
        """Note a use of what was seen of ``prompt``, kept or not, by a new call; its class.

        A live sequence had its first ``resident_tokens``, so that nothing kept was needed for them.
        A guess at what comes next uses nothing, and takes only what is left over until it turns out right.
        """
        if prompt.guessed:
            return CallClass.SIDE
        seen = self._seen(prompt, prompt.tokens)
        call_class = classify(prompt, seen[-1].end if seen else 0)
        self.tree.touch(seen, call_class, resident_tokens=resident_tokens)
        return call_class

    def _seen(self, prompt: Prompt, tokens: TokenArray) -> list[Segment]:
        """The segments of what was seen of ``tokens``, of chunks only those kept. May split the last."""
        match = self.match(prompt, tokens)
        if self.tree.splitting:
            return self.tree.descend(tokens, match.seen, prompt.owners, from_node=self.tree.root)
        return [segment for segment in match.chain if segment.end <= match.restorable]

    def advance(self) -> None:
        """What time and the disk tier ask for between two steps; next to nothing most of the time."""
        self.expire_pins()
        if self.disk is not None:
            self.disk.step()

    def expire_pins(self) -> None:
        """End the pins whose time is over, here and in other caches; costs next to nothing while there are none."""
        self.pins.expire(self._clock())
        self.pins.others.expire()

    def reject(self, segment: Segment) -> None:
        """Forget the rows of ``segment`` and below: a restore of it was refused."""
        self.counters.restore_failures += 1
        self.stored.discard_rows(segment, may_go=lambda node: True)
        self.tree.drop_below(segment, Absence.RESTORE_FAILED)
        self.pins.forget_lost(stateful=self.tree.stateful)

    def reject_state(self, segment: Segment) -> None:
        """Forget the state of ``segment``: a restore of it was refused. Its rows stay."""
        self.counters.restore_failures += 1
        self.stored.discard_state(segment)
        if segment.state is not None:
            self.tree.drop_state(segment)
            self.pins.forget_lost(stateful=self.tree.stateful)

    # -- saving -------------------------------------------------------------------------------

    def capture(
        self, prompt: Prompt, tokens: TokenArray, export: ExportState, *, call_class: CallClass, ends_reply: bool
    ) -> State | None:
        """A state behind ``tokens``, held by the caller until ``save`` takes it; None without room (counted)."""
        worth = math.inf if prompt.promised else self.storage.worth([self._tip(prompt, tokens, call_class)])
        stored = self.storage.store_state(export, worth=worth, ends_reply=ends_reply)
        return stored if isinstance(stored, State) else None

    def _tip(self, prompt: Prompt, tokens: TokenArray, call_class: CallClass) -> Segment:
        """The segment at the end of ``tokens``; where they were not seen yet, as it would be."""
        seen = self._seen(prompt, tokens)
        parent = seen[-1] if seen else self.tree.root
        if parent.end == tokens.size:
            return parent
        tip = Segment(parent, parent.end, tokens[parent.end :], owner=prompt.owners.at(parent.end))
        tip.last_used, tip.last_turn, tip.call_class = self.tree.tick, self.tree.turn, call_class
        return tip

    def save(
        self,
        prompt: Prompt,
        tokens: TokenArray,
        export: Export,
        states: dict[int, State] | None = None,
        *,
        call_class: CallClass = CallClass.COLD,
    ) -> Iterator[int]:
        """Keep the rows of ``tokens``, as far as they are not kept yet and worth it, and pin what the prompt asks for.

        ``tokens`` begin as the prompt does. ``states`` are taken over, by position, and those whose
        rows cannot be kept are freed. Yields the end of each piece once it is kept, so that the
        engine can do other work in between. The path is leased until the iterator ends.
        """
        states = {} if states is None else states
        call_class = at_end(call_class, int(tokens.size) - len(prompt))
        if self.tree.splitting:
            kept = self.tree.match(tokens, prompt.owners).restorable
            pieces = piece_ends(prompt, kept, int(tokens.size), longest=self._piece_tokens)
        else:
            pieces = [end for end in kept_chunk_ends(prompt, self._batch_tokens) if end <= tokens.size]
        path: list[Segment] = []
        try:
            source = _Source(tokens, prompt.owners, call_class, prompt.promised, export)
            yield from self._save_pieces(source, path, sorted({*pieces, *states}), states)
            self.pinning.after_save(prompt, int(tokens.size))
            if self.tree.stateful and not prompt.guessed:
                thin_states(self.tree, self.stored, path, prompt)
            if self.disk is not None:
                self.disk.after_save(path)
        finally:
            for node in path:
                node.leases -= 1
            for state in states.values():
                state.release()
            states.clear()
            self.tree.prune_ghosts()

    def _save_pieces(
        self, source: _Source, path: list[Segment], ends: list[int], states: dict[int, State]
    ) -> Iterator[int]:
        for index, end in enumerate(ends):
            absence = self._fill(self._go_on(path, source, end), source)
            if absence is not None:
                self._leave_out(path, source, ends[index + 1 :], absence)
                return
            state = states.pop(end, None)
            if state is not None:
                self.tree.keep_state(path[-1], state)
            yield end

    def _go_on(self, path: list[Segment], source: _Source, end: int) -> list[Segment]:
        """Lead ``path`` on to ``end``, leased; what was added to it."""
        parent = path[-1] if path else self.tree.root
        added = self.tree.descend(source.tokens, end, source.owners, from_node=parent)
        for node in added:
            node.leases += 1
            node.call_class = max(node.call_class, source.call_class)
        path.extend(added)
        return added

    def _fill(self, nodes: list[Segment], source: _Source) -> Absence | None:
        """Give rows to the ghosts among ``nodes``, neighbours; why not, when they stay ghosts.

        One export serves those of one owner, which share it; of those that are on disk already others.
        """
        missing = [node for node in nodes if node.rows is None]
        for _, owned in groupby(missing, key=lambda node: (node.owner, node.stored is None)):
            run = list(owned)
            worth = math.inf if source.promised else self.storage.worth(run)
            rows = self.storage.store_rows(run[0].start, run[-1].end, source.export, worth=worth)
            if isinstance(rows, Absence):
                for node in missing:
                    if node.rows is None:
                        node.absence = rows
                return rows
            for node in run:
                self.tree.keep(node, rows)
        return None

    def _leave_out(self, path: list[Segment], source: _Source, ends: list[int], absence: Absence) -> None:
        """Note that the rest was seen: behind what is not kept nothing can be restored."""
        for end in ends:
            for node in self._go_on(path, source, end):
                node.absence = absence

    # -- compaction ---------------------------------------------------------------------------

    def merge(self, prompt: Prompt, tokens: TokenArray, export: Export, *, limit: int) -> bool:
        """Export some neighbours again as one if the chain of ``tokens`` counts more than ``limit`` segments.

        False when nothing was left to do, or there was no room to do it (counted). Exact mode never
        merges: rows that are imported in other portions may lie in other cells.
        """
        if not self.tree.splitting:
            return False
        match = self.tree.match(tokens, prompt.owners)
        chain = [segment for segment in match.chain if segment.end <= match.restorable]
        runs = runs_of(chain, prompt.head_position)
        if len(runs) <= limit:
            return False
        bytes_per_token = sum(run.rows.nbytes for run in runs) / sum(run.rows.tokens for run in runs)
        room_tokens = int(self.storage.merge_room_bytes / max(bytes_per_token, 1.0))
        chosen = choose_merge(runs, limit, largest_tokens=room_tokens)
        if not chosen:
            self.counters.unmerged[Absence.NO_ROOM] += 1
            return False
        return self._merge_runs(chain, chosen, export)

    def _merge_runs(self, chain: Sequence[Segment], runs: Sequence[Run], export: Export) -> bool:
        segments = [segment for run in runs for segment in run.segments]
        for node in chain:
            node.leases += 1
        worth = self.storage.worth(segments)
        rows = self.storage.store_merged(segments[0].start, segments[-1].end, export, worth=worth)
        for node in chain:
            node.leases -= 1
        if rows is None:
            return False
        self.tree.replace_rows(segments, rows)
        self.counters.merged_segments += len(runs)
        return True

    # -- giving up ----------------------------------------------------------------------------

    def give_back(self, size_bytes: int) -> None:
        """Give up ``size_bytes`` or more, nothing leased, what is pinned last and explicit pins never.

        Free pages go back to the system.
        """
        freed = self.storage.free(size_bytes)
        while freed < size_bytes and self.pins.release_weakest():
            freed += self.storage.free(size_bytes - freed)
        self.counters.pressure_bytes += freed
        self.arena.return_pages()
        self.tree.prune_ghosts()

    def held_bytes(self, tenant: str) -> int:
        """Bytes of all that is kept of ``tenant``."""
        held = 0.0
        for node in self.tree.kept:
            if node.owner == tenant and node.rows is not None:
                held += node.rows.nbytes * int(node.tokens.size) / node.rows.tokens + node.state_bytes
        return round(held)

    def clear(self, tenant: str, deleted: Callable[[int], None] = lambda left: None) -> int:
        """Forget everything of ``tenant`` that is neither pinned nor leased, ids too; the bytes that freed.

        ``deleted`` is told how many files could not be deleted, once all were tried, on any thread.
        """
        before = self.arena.used_bytes
        nodes = [node for node in self.tree if node.owner == tenant]
        needed = _with_what_lies_before(node for node in nodes if not _is_free(node))
        for node in reversed(nodes):
            if _is_free(node):
                self.stored.discard_state(node)
            self.stored.discard_rows(node, may_go=lambda other: other not in needed)
            if node.is_droppable:
                self.tree.drop(node, Absence.EVICTED)
            self.tree.forget(node)
        if self.disk is not None:
            self.disk.clear(tenant, deleted)
        else:
            deleted(0)
        return before - self.arena.used_bytes


def _is_free(node: Segment) -> bool:
    """Whether nobody holds it."""
    return not node.leases and not node.pins


def _with_what_lies_before(nodes: Iterable[Segment]) -> set[Segment]:
    found: set[Segment] = set()
    for node in nodes:
        at: Segment | None = node
        while at is not None and at not in found:
            found.add(at)
            at = at.parent
    return found
