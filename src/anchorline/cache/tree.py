"""The segment tree: which token histories were seen, and which of their rows are kept.

A path from the root spells a token history; each node is one segment of it.

    root ── [0 ─ system+tools ─ 900) ──┬── [900 ─ user, reply ─ 1400) ── [1400 ─ tool result ─ 1500)
                                       └── [900 ─ another session ─ 1200)

A node without rows is a *ghost*: its ids stay, so that a miss can be explained, until the tree is
over its token limit. Rows belong to an export that may span several nodes (a node split later
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
from enum import StrEnum
from itertools import count

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.prompt import Owners
from anchorline.cache.rows import Rows, State
from anchorline.cache.tokens import common_prefix
from anchorline.llama.interface import TokenArray


class Absence(StrEnum):
    """Why a ghost has no rows."""

    EVICTED = "evicted"
    NO_ROOM = "no_room"
    """Nothing that is worth less could be freed for them."""
    OVERSIZE = "oversize"
    """They are larger than the whole budget."""
    MEMORY_SHORT = "memory_short"
    """They are larger than what the cache may take while the machine's memory is short."""
    EXPORT_FAILED = "export_failed"
    RESTORE_FAILED = "restore_failed"


class Segment:
    """One node: the ids of [start, end) of a history, and its rows unless it is a ghost."""

    __slots__ = (
        "absence",
        "call_class",
        "children",
        "last_turn",
        "last_used",
        "leases",
        "owner",
        "parent",
        "pins",
        "rows",
        "start",
        "state",
        "tokens",
        "use_gap",
    )

    def __init__(self, parent: Segment | None, start: int, tokens: TokenArray, *, owner: str | None) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.owner = owner
        """The tenant whose calls alone see this node; None when all do."""
        self.children: dict[tuple[str | None, int], list[Segment]] = {}
        """By ``slot``."""
        self.rows: Rows | None = None
        self.state: State | None = None
        """The state at ``end``; only where there are rows."""
        self.absence: Absence | None = None
        self.leases = 0
        self.pins = 0
        self.call_class = CallClass.SIDE
        """The highest of the calls that held these tokens."""
        self.last_used = 0
        """The tick at which a call last held them …"""
        self.last_turn = 0
        """… and the turn."""
        self.use_gap: float | None = None
        """Turns between two such calls, smoothed; None while there was one."""

    def note_use(self, tick: int, turn: int, call_class: CallClass) -> None:
        """A call came back to these tokens."""
        elapsed = float(max(turn - self.last_turn, 1))
        gap = elapsed if self.use_gap is None else self.use_gap
        self.use_gap = (gap + elapsed) / 2
        self.last_used, self.last_turn = tick, turn
        self.call_class = max(self.call_class, call_class)

    @property
    def end(self) -> int:
        return self.start + int(self.tokens.size)

    @property
    def slot(self) -> tuple[str | None, int]:
        """Where its parent keeps it: the owner and the first id."""
        return self.owner, int(self.tokens[0])

    @property
    def kept_bytes(self) -> int:
        """This node's share of its export, by tokens, and its state; 0 for a ghost."""
        return 0 if self.rows is None else self.row_bytes + self.state_bytes

    @property
    def row_bytes(self) -> int:
        """This node's share of its export, by tokens."""
        return 0 if self.rows is None else self.rows.nbytes * int(self.tokens.size) // self.rows.tokens

    @property
    def state_bytes(self) -> int:
        """Of the state at its end; part of ``kept_bytes``."""
        return 0 if self.state is None else self.state.nbytes

    def offspring(self) -> Iterator[Segment]:
        for siblings in self.children.values():
            yield from siblings

    @property
    def is_droppable(self) -> bool:
        """Whether its rows may go: nobody holds it and nothing kept depends on it."""
        return (
            self.rows is not None
            and self.leases == 0
            and self.pins == 0
            and all(child.rows is None for child in self.offspring())
        )


GHOST_TOKENS_MIN = 64
"""A node's own memory, expressed in ids."""


def _ghost_cost(node: Segment) -> int:
    return max(int(node.tokens.size), GHOST_TOKENS_MIN)


@dataclass(frozen=True, slots=True)
class Match:
    """How far a prompt agrees with the tree.

    ``chain`` holds the segments with rows from the root on, of which ``restorable`` tokens agree
    with the prompt; ``seen`` tokens were seen before, rows kept or not; ``absence`` says why the
    rows between the two are gone. ``deepest`` is the segment in which the agreement ends, None where nothing is known.
    """

    chain: tuple[Segment, ...]
    restorable: int
    seen: int
    absence: Absence | None
    deepest: Segment | None = None


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
        chain: list[Segment] = []
        restorable = seen = 0
        absence: Absence | None = None
        node = self.root
        while seen < tokens.size:
            rest = tokens[seen : owners.span_end(seen, int(tokens.size))]
            child, agreed = self._step(node, rest, owners.at(seen))
            if child is None or agreed == 0:
                break
            if child.rows is not None and restorable == seen:
                chain.append(child)
                restorable += agreed
            elif absence is None and child.rows is None:
                absence = child.absence
            seen += agreed
            node = child
            if agreed < child.tokens.size:
                break
        return Match(tuple(chain), restorable, seen, absence if restorable < seen else None, node)

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
        chain: list[Segment] = []
        restorable = seen = 0
        absence: Absence | None = None
        node = self.root
        for end in ends:
            assert owners.span_end(seen, end) == end, "what is common ends at a cut, and so does a chunk"
            child = self._exact_child(node, tokens[seen:end], owners.at(seen))
            if child is None:
                break
            if child.rows is not None and restorable == seen:
                chain.append(child)
                restorable = end
            elif absence is None and child.rows is None:
                absence = child.absence
            seen = end
            node = child
        return Match(tuple(chain), restorable, seen, absence if restorable < seen else None, node)

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
            owner = owners.at(node.end)
            span = tokens[node.end : owners.span_end(node.end, end)]
            if not self.splitting:
                node = self._exact_child(node, span, owner) or self._new_child(node, span, owner)
                path.append(node)
                continue
            child, agreed = self._step(node, span, owner)
            if child is None or agreed == 0:
                node = self._new_child(node, span, owner)
            else:
                node = child if agreed == child.tokens.size else self._split(child, agreed)
            path.append(node)
        return path

    def _new_child(self, parent: Segment, span: TokenArray, owner: str | None) -> Segment:
        child = Segment(parent, parent.end, span.astype(np.int32, copy=True), owner=owner)
        child.last_used, child.last_turn = self._tick, self._turn
        parent.children.setdefault(child.slot, []).append(child)
        self.ghost_tokens += _ghost_cost(child)
        return child

    def _split(self, node: Segment, at: int) -> Segment:
        """Split ``node`` after ``at`` of its tokens; the upper part is new, ``node`` keeps the tail.

        Leases, pins and the state stay with the tail, which keeps the upper part alive as its parent.
        """
        assert 0 < at < node.tokens.size
        assert node.parent is not None
        cost_before = _ghost_cost(node)
        upper = Segment(node.parent, node.start, node.tokens[:at], owner=node.owner)
        upper.last_used, upper.last_turn, upper.use_gap = node.last_used, node.last_turn, node.use_gap
        upper.call_class, upper.absence = node.call_class, node.absence
        if node.rows is not None:
            upper.rows = node.rows  # the two parts view what the one did
            self.kept[upper] = None
        siblings = node.parent.children[upper.slot]
        siblings[siblings.index(node)] = upper
        node.parent = upper
        node.start += at
        node.tokens = node.tokens[at:]
        upper.children[node.slot] = [node]
        if node.rows is None:
            self.ghost_tokens += _ghost_cost(node) + _ghost_cost(upper) - cost_before
        return upper

    def keep(self, node: Segment, rows: Rows) -> None:
        """Give a ghost its rows; ``rows`` must cover it."""
        assert node.rows is None
        assert rows.start <= node.start
        assert node.end <= rows.end
        node.rows = rows.view(int(node.tokens.size))
        node.absence = None
        self.kept[node] = None
        self.ghost_tokens -= _ghost_cost(node)

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

    def drop(self, node: Segment, reason: Absence) -> None:
        """Turn a droppable node into a ghost."""
        assert node.is_droppable
        self._make_ghost(node, reason)

    def drop_below(self, node: Segment, reason: Absence) -> None:
        """Make ghosts of ``node`` and everything kept below it, held or not: the rows are bad."""
        stack = [node]
        while stack:
            current = stack.pop()
            stack.extend(current.offspring())
            if current.rows is not None:
                self._make_ghost(current, reason)

    def _make_ghost(self, node: Segment, reason: Absence) -> None:
        assert node.rows is not None
        if node.state is not None:
            self.drop_state(node)
        node.rows.release(int(node.tokens.size))
        node.rows = None
        node.absence = reason
        del self.kept[node]
        self.ghost_tokens += _ghost_cost(node)

    def touch(self, nodes: Sequence[Segment], call_class: CallClass) -> None:
        """Note that one more call held the tokens of ``nodes``, kept or not."""
        self._tick += 1
        self._turn += call_class is CallClass.CONVERSATION
        for node in nodes:
            node.note_use(self._tick, self._turn, call_class)

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
        return node.rows is None and node.leases == 0 and node.pins == 0 and not node.children
