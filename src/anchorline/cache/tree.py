"""The segment tree: which token histories were seen, and which of their rows are kept.

A path from the root spells a token history; each node is one segment of it.

    root ── [0 ─ system+tools ─ 900) ──┬── [900 ─ user, reply ─ 1400) ── [1400 ─ tool result ─ 1500)
                                       └── [900 ─ another session ─ 1200)

A node whose rows are in no tier is a *ghost*: its ids stay, so that a miss can be explained, until the
tree is over its token limit. Rows belong to an export that may span several nodes (a node split later
views a part of the same export), so bytes are freed with the last view.

In a *splitting* tree two histories part anywhere, and any position may be resumed. In a *whole*
tree (exact mode) a segment is one prefill chunk, taken whole or not at all, and histories that
were chunked differently are siblings even where their ids agree.

Each node is one tenant's, or common to all. A walk sees of each position only the nodes of its owner
there, so the histories of two tenants are siblings even where their ids agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.prompt import Owners
from anchorline.cache.rows import Rows, State
from anchorline.cache.segment import Absence, Segment, Stored
from anchorline.cache.tokens import common_prefix
from anchorline.llama.interface import TokenArray

GHOST_TOKENS_MIN = 64
"""A node's own memory, expressed in ids."""


def _ghost_cost(node: Segment) -> int:
    return max(int(node.tokens.size), GHOST_TOKENS_MIN) if node.is_ghost else 0


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt agrees with the tree.

    ``chain`` holds the segments with rows in the host tier from the root on, of which ``restorable`` tokens
    agree with the prompt; ``path`` goes on with those that lie on disk alone, up to ``reachable`` tokens.
    ``seen`` tokens were seen before, rows kept or not; ``absence`` says why what lies behind is gone. ``deepest`` is
    the segment in which the agreement ends, None where nothing is known.

    chain  |=== host ===|
    path   |=== host ===|=== disk ===|
    seen   |=== host ===|=== disk ===|--- ghosts ---|
    """

    path: tuple[Segment, ...]
    restorable: int
    reachable: int
    seen: int
    absence: Absence | None
    deepest: Segment | None = None

    @property
    def chain(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.path if segment.start < self.restorable)


NOTHING_MATCHED = Match((), 0, 0, 0, None)


class _Walk:
    """A match in the making: the segments that it comes by, one after another."""

    __slots__ = ("absence", "deepest", "path", "reachable", "restorable", "seen")

    def __init__(self, root: Segment) -> None:
        self.deepest = root
        self.path: list[Segment] = []
        self.restorable = self.reachable = self.seen = 0
        self.absence: Absence | None = None

    def go_on(self, segment: Segment, agreed: int) -> None:
        """The next ``agreed`` tokens are the first of ``segment``."""
        if segment.rows is not None and self.restorable == self.seen:
            self.restorable += agreed
        if segment.is_reachable and self.reachable == self.seen:
            self.path.append(segment)
            self.reachable += agreed
        elif self.absence is None and not segment.is_reachable:
            self.absence = segment.absence
        self.seen += agreed
        self.deepest = segment

    def end(self) -> Match:
        absence = self.absence if self.reachable < self.seen else None
        return Match(tuple(self.path), self.restorable, self.reachable, self.seen, absence, self.deepest)


class SegmentTree:
    """Every token history of one namespace. Not thread-safe; owned by the engine thread."""

    def __init__(self, *, splitting: bool = True, stateful: bool = False, ghost_tokens_limit: int = 8_000_000) -> None:
        self.root = Segment(None, 0, np.empty(0, dtype=np.int32), owner=None)
        self.splitting = splitting
        self.stateful = stateful
        """Whether a prefix is usable only where a segment with a state ends."""
        self.ghost_tokens = 0
        """Ids of ghosts, each ghost counted as at least GHOST_TOKENS_MIN: what they cost in memory."""
        self.kept: dict[Segment, None] = {}
        """The nodes with rows, in the order they were kept; eviction looks at no others, however many there are."""
        self.states = 0
        self.state_bytes = 0
        self._ghost_tokens_limit = ghost_tokens_limit
        self._tick = 0
        self._turn = 0

    def match(self, tokens: TokenArray, owners: Owners) -> Match:
        """The deepest agreement of ``tokens`` with what ``owners`` see of a splitting tree. Changes nothing."""
        assert self.splitting
        walk = _Walk(self.root)
        node = self.root
        while walk.seen < tokens.size:
            rest = tokens[walk.seen : owners.span_end(walk.seen, int(tokens.size))]
            child, agreed = self._step(node, rest, owners.at(walk.seen))
            if child is None or agreed == 0:
                break
            walk.go_on(child, agreed)
            if agreed < child.tokens.size:
                break
            node = child
        return walk.end()

    def _step(self, node: Segment, rest: TokenArray, owner: str | None) -> tuple[Segment | None, int]:
        """The child of ``node`` and of ``owner`` that agrees with the beginning of ``rest``, and how long.

        A splitting tree has at most one such child, since siblings of one owner differ in their first id.
        """
        for child in node.children.get((owner, int(rest[0])), ()):
            return child, common_prefix(child.tokens, rest)
        return None, 0

    def match_chunks(self, tokens: TokenArray, ends: list[int], owners: Owners) -> Match:
        """Whole trees: follow the path whose segments end exactly at ``ends``, in order."""
        assert not self.splitting
        walk = _Walk(self.root)
        node = self.root
        for end in ends:
            assert owners.span_end(walk.seen, end) == end, "what is common ends at a cut, and so does a chunk"
            child = self._exact_child(node, tokens[walk.seen : end], owners.at(walk.seen))
            if child is None:
                break
            walk.go_on(child, end - walk.seen)
            node = child
        return walk.end()

    @staticmethod
    def _exact_child(node: Segment, span: TokenArray, owner: str | None) -> Segment | None:
        for child in node.children.get((owner, int(span[0])), ()):
            if child.tokens.size == span.size and common_prefix(child.tokens, span) == span.size:
                return child
        return None

    def descend(self, tokens: TokenArray, end: int, owners: Owners, *, from_node: Segment) -> list[Segment]:
        """The nodes of ``owners`` that spell ``tokens[from_node.end:end]`` below ``from_node``; made where missing.

        New nodes are ghosts. In a splitting tree an existing node is split where ``end`` or the
        first difference falls inside it. Returns the new path, ``from_node`` excluded.
        """
        path: list[Segment] = []
        node = from_node
        while node.end < end:
            span = tokens[node.end : owners.span_end(node.end, end)]
            path.extend(self.lay(node, span, owners.at(node.end)))
            node = path[-1]
        return path

    def lay(self, node: Segment, span: TokenArray, owner: str | None) -> list[Segment]:
        """The nodes of one owner that spell ``span`` below ``node``, made or split where needed."""
        path: list[Segment] = []
        end = node.end + int(span.size)
        while node.end < end:
            rest = span[node.end - end :]
            node = self._child(node, rest, owner)
            path.append(node)
        return path

    def _child(self, node: Segment, span: TokenArray, owner: str | None) -> Segment:
        """The child of ``node`` that spells ``span`` or its beginning; a split one, or a new one that spells it all."""
        if not self.splitting:
            return self._exact_child(node, span, owner) or self._new_child(node, span, owner)
        child, agreed = self._step(node, span, owner)
        if child is None or agreed == 0:
            return self._new_child(node, span, owner)
        return child if agreed == child.tokens.size else self.split(child, agreed)

    def _new_child(self, parent: Segment, span: TokenArray, owner: str | None) -> Segment:
        child = Segment(parent, parent.end, span.astype(np.int32, copy=True), owner=owner)
        child.last_used, child.last_turn = self._tick, self._turn
        parent.children.setdefault(child.slot, []).append(child)
        self.ghost_tokens += _ghost_cost(child)
        return child

    def split(self, node: Segment, at: int) -> Segment:
        """Split ``node`` after ``at`` of its tokens; the upper part is new, ``node`` keeps the tail.

        Leases, pins and the state stay with the tail, which keeps the upper part alive as its parent.
        """
        assert 0 < at < node.tokens.size
        assert node.parent is not None
        cost_before = _ghost_cost(node)
        upper = Segment(node.parent, node.start, node.tokens[:at], owner=node.owner)
        upper.last_used, upper.last_turn, upper.use_gap = node.last_used, node.last_turn, node.use_gap
        upper.needed, upper.call_class = node.needed, node.call_class
        upper.absence, upper.stored = node.absence, node.stored
        if node.rows is not None:
            upper.rows = node.rows  # the two parts view what the one did
            self.kept[upper] = None
        siblings = node.parent.children[upper.slot]
        siblings[siblings.index(node)] = upper
        node.parent = upper
        node.start += at
        node.tokens = node.tokens[at:]
        upper.children[node.slot] = [node]
        self.ghost_tokens += _ghost_cost(node) + _ghost_cost(upper) - cost_before
        return upper

    def keep(self, node: Segment, rows: Rows) -> None:
        """Give a node without rows in the host tier such; ``rows`` must cover it."""
        assert node.rows is None
        assert rows.start <= node.start
        assert node.end <= rows.end
        self.ghost_tokens -= _ghost_cost(node)
        node.rows = rows.view(int(node.tokens.size))
        node.absence = None
        self.kept[node] = None

    def replace_rows(self, nodes: Sequence[Segment], rows: Rows) -> None:
        """Let kept nodes view ``rows``, which must cover them, instead of what they viewed."""
        for node in nodes:
            replaced = node.rows
            assert replaced is not None
            assert rows.start <= node.start
            assert node.end <= rows.end
            node.rows = rows.view(int(node.tokens.size))
            replaced.release(int(node.tokens.size))

    def keep_state(self, node: Segment, state: State) -> None:
        """Give a kept node the state at its end; the state it may have had is freed."""
        assert node.rows is not None
        if node.state is not None:
            self.drop_state(node)
        node.state = state
        self.states += 1
        self.state_bytes += state.nbytes

    def drop_state(self, node: Segment) -> None:
        """Free a node's state; its rows stay and can still be restored up to a later one."""
        assert node.state is not None
        self.states -= 1
        self.state_bytes -= node.state.nbytes
        node.state.release()
        node.state = None

    def note_stored(self, node: Segment, stored: Stored | None) -> None:
        """Note which record has the rows of ``node``, or that none has."""
        self.ghost_tokens -= _ghost_cost(node)
        node.stored = stored
        self.ghost_tokens += _ghost_cost(node)

    def note_stored_state(self, node: Segment, stored: Stored | None) -> None:
        """Note which record has the state of ``node``, or that none has."""
        self.ghost_tokens -= _ghost_cost(node)
        node.stored_state = stored
        self.ghost_tokens += _ghost_cost(node)

    def drop(self, node: Segment, reason: Absence) -> None:
        """Take the rows of a droppable node out of the host tier."""
        assert node.is_droppable
        self._drop_rows(node, reason)

    def drop_below(self, node: Segment, reason: Absence) -> None:
        """Take the rows of ``node`` and all below it out of the host tier, held or not: they are bad."""
        stack = [node]
        while stack:
            current = stack.pop()
            stack.extend(current.offspring())
            if current.rows is not None:
                self._drop_rows(current, reason)

    def _drop_rows(self, node: Segment, reason: Absence) -> None:
        assert node.rows is not None
        if node.state is not None:
            self.drop_state(node)
        node.rows.release(int(node.tokens.size))
        node.rows = None
        node.absence = reason
        del self.kept[node]
        self.ghost_tokens += _ghost_cost(node)

    def touch(self, nodes: Sequence[Segment], call_class: CallClass, *, resident_tokens: int = 0) -> None:
        """Note that one more call held the tokens of ``nodes``, kept or not; so many of its first were live."""
        self._tick += 1
        self._turn += call_class is CallClass.CONVERSATION
        for node in nodes:
            node.note_use(self._tick, self._turn, call_class, resident_tokens=resident_tokens)

    def tokens_by_class(self) -> dict[CallClass, int]:
        """Kept tokens by the class of their segments."""
        tokens = dict.fromkeys(CallClass, 0)
        for node in self.kept:
            tokens[node.call_class] += int(node.tokens.size)
        return tokens

    @property
    def tick(self) -> int:
        """Calls noted so far: the clock of recency."""
        return self._tick

    @property
    def turn(self) -> int:
        """Calls of conversations noted so far: the clock of rhythm, which no flood of other calls moves."""
        return self._turn

    def __iter__(self) -> Iterator[Segment]:
        """Every node but the root, parents before children."""
        stack = list(self.root.offspring())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.offspring())

    def prune_ghosts(self) -> None:
        """Forget the least recently used childless ghosts until the ids fit their limit again."""
        if self.ghost_tokens <= self._ghost_tokens_limit:
            return
        order = count()
        heap = [(n.last_used, next(order), n) for n in self if self._is_forgettable(n)]
        heapq.heapify(heap)
        while heap and self.ghost_tokens > self._ghost_tokens_limit // 2:
            _, _, node = heapq.heappop(heap)
            parent = node.parent
            assert parent is not None
            self.forget(node)
            if parent is not self.root and self._is_forgettable(parent):
                heapq.heappush(heap, (parent.last_used, next(order), parent))

    def forget(self, node: Segment) -> None:
        """Take a childless ghost that nobody holds out of the tree; any other node stays."""
        parent = node.parent
        if parent is None or not self._is_forgettable(node):
            return
        siblings = parent.children[node.slot]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.slot]
        self.ghost_tokens -= _ghost_cost(node)

    @staticmethod
    def _is_forgettable(node: Segment) -> bool:
        return node.is_ghost and node.leases == 0 and node.pins == 0 and not node.children
