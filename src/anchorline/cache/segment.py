"""One node of the segment tree, and what is known of its bytes on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from anchorline.cache.classes import CallClass
from anchorline.cache.rows import Rows, State
from anchorline.disk.record import RecordKind, SegmentRecord
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


class Stored:
    """A record of the disk tier, as the nodes see whose bytes it has: those of [start, end) of one history."""

    __slots__ = ("is_written", "record", "tail")

    def __init__(self, record: SegmentRecord, tail: Segment, *, is_written: bool) -> None:
        self.record = record
        """Without its ids, which the nodes have."""
        self.tail = tail
        """The node that ends where the record does."""
        self.is_written = is_written
        """Whether it can be read; until then the host tier holds the bytes."""

    def nodes(self) -> list[Segment]:
        """The nodes of its span, the last first; of a state the one that ends there."""
        nodes = [self.tail]
        while (above := nodes[-1].parent) is not None and above.end > self.record.start:
            nodes.append(above)
        return nodes

    def whole_record(self) -> SegmentRecord:
        """The record with its ids."""
        if self.record.kind is RecordKind.STATE:
            return self.record
        return replace(self.record, tokens=np.concatenate([node.tokens for node in reversed(self.nodes())]))


class Segment:
    """One node: the ids of [start, end) of a history, and its rows unless it is a ghost.

    Rows and state lie in the host tier, on disk, or in both. Whoever has rows in the host tier has a parent that
    has; on disk a record may outlive its parents'.
    """

    __slots__ = (
        "absence",
        "call_class",
        "children",
        "last_turn",
        "last_used",
        "leases",
        "needed",
        "owner",
        "parent",
        "pins",
        "rows",
        "start",
        "state",
        "stored",
        "stored_state",
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
        self.stored: Stored | None = None
        """The record on disk that has its rows, written or being written."""
        self.stored_state: Stored | None = None
        """The one that has its state."""
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
        self.needed = 1.0
        """The share of such calls that no live sequence held them for, smoothed."""

    def note_use(self, tick: int, turn: int, call_class: CallClass, *, resident_tokens: int = 0) -> None:
        """A call came back to these tokens; so many of its first were live."""
        self.needed = (self.needed + (self.end > resident_tokens)) / 2
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

    @property
    def is_reachable(self) -> bool:
        """Whether its rows can be had: from the host tier, or from disk."""
        return self.rows is not None or (self.stored is not None and self.stored.is_written)

    @property
    def has_reachable_state(self) -> bool:
        """Whether its state can be had, from either tier."""
        return self.state is not None or (self.stored_state is not None and self.stored_state.is_written)

    @property
    def is_ghost(self) -> bool:
        """Whether nothing but its ids is there."""
        return self.rows is None and self.stored is None and self.stored_state is None

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
